/* Parts that the routing algorithms share: their arguments, and access to the votes of one position. */
#ifndef HF_CAPSULE_MT_ROUTING_H
#define HF_CAPSULE_MT_ROUTING_H

#include <stddef.h>

#include "vector_math.h"

#define VOTE_LIMIT 1e12f /* as in ops/precision.py */

typedef struct {
    const float *votes;           /* [N, I, O, D], contiguous in O and D */
    const float *log_activations; /* [N, I] or NULL */
    const unsigned char *mask;    /* [N, I] or NULL; 0 for padding */
    const float *beta_a, *beta_u; /* [O], EM routing */
    const float *grad_capsules;   /* [N, O, D], backward */
    float *capsules;              /* [N, O, D], forward */
    float *grad_votes;            /* shape and strides of the votes, backward */
    float *grad_log_activations;  /* [N, I] or NULL */
    int64_t stride_n, stride_i;   /* of the votes and of their gradient */
    int N, I, O, D, T;
    int kept; /* number of rounds whose results are kept: those of round t are at t % kept */
    int normalize, stop_gradient;
    float variance_floor;
    float vote_limit; /* infinite for float16: only an overflow exceeds it, and that must stay visible */
    double inverse_temperature;
} Problem;

INLINE float *take(float **scratch, int count) {
    float *memory = *scratch;
    *scratch += count;
    return memory;
}

/* Room for `count` objects of `bytes` bytes. Call it before `take`, so that they are aligned like `malloc`'s memory. */
INLINE void *take_bytes(float **scratch, size_t count, size_t bytes) {
    return take(scratch, (int)((count * bytes + 63) / 64 * (64 / sizeof(float))));
}

INLINE float limited(float vote, float limit) { return vote < -limit ? -limit : vote > limit ? limit : vote; }

/* Copy the votes and log activations of the inputs that are not masked. Returns their number; `kept` gets their
 * indices. */
INLINE int gather(const Problem *p, int n, float *votes, float *log_activations, int *kept) {
    const int OD = p->O * p->D;
    int count = 0;
    for (int i = 0; i < p->I; i++) {
        if (p->mask && !p->mask[(size_t)n * p->I + i]) continue;
        const float *vote = p->votes + n * p->stride_n + i * p->stride_i;
        float *into = votes + (size_t)count * OD;
        LOOP for (int k = 0; k < OD; k++) into[k] = limited(vote[k], p->vote_limit);
        if (log_activations)
            log_activations[count] = p->log_activations ? p->log_activations[(size_t)n * p->I + i] : 0.0f;
        if (kept) kept[count] = i;
        count++;
    }
    return count;
}

/* Write the gradients of the inputs that are not masked; 0 for masked inputs and for votes outside the limit. */
INLINE void scatter(const Problem *p, int n, int count, const int *kept, const float *g_votes,
                    const float *g_log_activations) {
    const int OD = p->O * p->D;
    for (int i = 0, next = 0; i < p->I; i++) {
        float *into = p->grad_votes + n * p->stride_n + i * p->stride_i;
        const int here = next < count && kept[next] == i;
        if (here) {
            const float *vote = p->votes + n * p->stride_n + i * p->stride_i, *g = g_votes + (size_t)next * OD;
            LOOP for (int k = 0; k < OD; k++) into[k] = limited(vote[k], p->vote_limit) == vote[k] ? g[k] : 0.0f;
        } else {
            set_zero(into, OD);
        }
        if (p->grad_log_activations)
            p->grad_log_activations[(size_t)n * p->I + i] = here ? g_log_activations[next] : 0.0f;
        next += here;
    }
}

#endif
