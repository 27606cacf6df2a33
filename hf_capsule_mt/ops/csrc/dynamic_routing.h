/* Dynamic routing of one position after the other, and its gradients: Eq. (5)-(9), Algorithm 1 of DLA, with `normalize`
 * Algorithm 1 of HEADS. The Python version is `dynamic_routing` of ops/dynamic/reference.py.
 */
#ifndef HF_CAPSULE_MT_DYNAMIC_ROUTING_H
#define HF_CAPSULE_MT_DYNAMIC_ROUTING_H

#include "routing.h"

/* The results of one iteration that the backward pass needs. */
typedef struct {
    float *shares;   /* [I, O], the assignments */
    float *weights;  /* [I, O], the assignments, with `normalize` normalized over the inputs */
    float *sums;     /* [O, D], before squashing */
    float *capsules; /* [O, D] */
} Agreement;

INLINE size_t dynamic_scratch(const Problem *p) {
    const size_t I = (size_t)p->I, O = (size_t)p->O, D = (size_t)p->D;
    return I * O * D + I * O + (size_t)p->kept * (2 * I * O + 2 * O * D) + 2 * O /* forward */
           + I * O * D + 2 * I * O + O * D + O;                                  /* backward */
}

INLINE Agreement dynamic_round(const Problem *p, float **scratch) {
    Agreement a;
    a.shares = take(scratch, p->I * p->O);
    a.weights = p->normalize ? take(scratch, p->I * p->O) : a.shares;
    a.sums = take(scratch, p->O * p->D);
    a.capsules = take(scratch, p->O * p->D);
    return a;
}

/* Eq. (5): the length of each sum, and the factor that squashes it. */
INLINE void squash(const Problem *p, const Agreement *a, float *lengths, float *factors) {
    const int O = p->O, D = p->D;
    set_zero(lengths, O);
    add_dots(lengths, a->sums, a->sums, O, D);
    LOOP for (int o = 0; o < O; o++) {
        lengths[o] = sqrtf(lengths[o]);
        factors[o] = lengths[o] / (1.0f + lengths[o] * lengths[o]);
    }
}

INLINE void dynamic_rounds(const Problem *p, int I, const float *votes, float *logits, const Agreement *rounds,
                           float *lengths, float *factors) {
    const int O = p->O, D = p->D;
    set_zero(logits, I * O);
    for (int t = 0; t < p->T; t++) {
        const Agreement *a = rounds + t % p->kept;
        for (int i = 0; i < I; i++) {
            const float *logit = logits + i * O;
            float largest;
            const float normalizer = softmax_into(a->shares + i * O, logit, O, &largest);
            if (!p->normalize) continue;
            float *weight = a->weights + i * O; /* log assignments, from the logits: an assignment may have underflowed */
            LOOP for (int o = 0; o < O; o++) weight[o] = (logit[o] - largest) - normalizer;
        }
        if (p->normalize) { /* their softmax over the inputs */
            float *most = lengths, *sum = factors;
            fill(most, -3e38f, O);
            for (int i = 0; i < I; i++)
                LOOP for (int o = 0; o < O; o++)
                    most[o] = a->weights[i * O + o] > most[o] ? a->weights[i * O + o] : most[o];
            set_zero(sum, O);
            for (int i = 0; i < I; i++)
                LOOP for (int o = 0; o < O; o++) {
                    float e = exp_f(a->weights[i * O + o] - most[o]);
                    a->weights[i * O + o] = e;
                    sum[o] += e;
                }
            for (int i = 0; i < I; i++)
                LOOP for (int o = 0; o < O; o++) a->weights[i * O + o] /= sum[o];
        }
        set_zero(a->sums, O * D);
        for (int i = 0; i < I; i++) add_scaled(a->sums, a->weights + i * O, votes + i * O * D, O, D);
        squash(p, a, lengths, factors);
        set_zero(a->capsules, O * D);
        add_scaled(a->capsules, factors, a->sums, O, D);
        if (t + 1 < p->T)
            for (int i = 0; i < I; i++) add_dots(logits + i * O, votes + i * O * D, a->capsules, O, D);
    }
}

INLINE void dynamic_forward_body(const Problem *p, int from, int to, float *scratch) {
    const int O = p->O, D = p->D;
    float *votes = take(&scratch, p->I * O * D), *logits = take(&scratch, p->I * O);
    float *lengths = take(&scratch, O), *factors = take(&scratch, O);
    const Agreement one = dynamic_round(p, &scratch); /* `kept` is 1 */
    for (int n = from; n < to; n++) {
        int I = gather(p, n, votes, NULL, NULL);
        dynamic_rounds(p, I, votes, logits, &one, lengths, factors);
        memcpy(p->capsules + (size_t)n * O * D, one.capsules, sizeof(float) * (size_t)(O * D));
    }
}

EVERY_PROCESSOR(dynamic_forward, (const Problem *p, int from, int to, float *scratch), (p, from, to, scratch))

INLINE void dynamic_backward_body(const Problem *p, int from, int to, float *scratch) {
    const int O = p->O, D = p->D, OD = O * D;
    Agreement *rounds = take_bytes(&scratch, (size_t)p->T, sizeof(Agreement));
    int *kept = take_bytes(&scratch, (size_t)p->I, sizeof(int));
    float *votes = take(&scratch, p->I * OD), *logits = take(&scratch, p->I * O);
    float *lengths = take(&scratch, O), *factors = take(&scratch, O);
    for (int t = 0; t < p->T; t++) rounds[t] = dynamic_round(p, &scratch);
    float *g_votes = take(&scratch, p->I * OD), *g_logits = take(&scratch, p->I * O);
    float *g_weights = take(&scratch, p->I * O), *g_capsules = take(&scratch, OD), *part = take(&scratch, O);
    for (int n = from; n < to; n++) {
        const int I = gather(p, n, votes, NULL, kept);
        dynamic_rounds(p, I, votes, logits, rounds, lengths, factors);
        set_zero(g_votes, I * OD);
        set_zero(g_logits, I * O);
        for (int t = p->T - 1; t >= 0; t--) {
            const Agreement *a = rounds + t;
            if (t == p->T - 1) {
                memcpy(g_capsules, p->grad_capsules + (size_t)n * OD, sizeof(float) * (size_t)OD);
            } else if (p->stop_gradient) {
                break; /* earlier rounds change the result only through the assignments */
            } else { /* logits += vote . capsule */
                set_zero(g_capsules, OD);
                for (int i = 0; i < I; i++) {
                    add_scaled(g_capsules, g_logits + i * O, votes + i * OD, O, D);
                    add_scaled(g_votes + i * OD, g_logits + i * O, a->capsules, O, D);
                }
            }
            /* Squashing: the gradient of s |s| / (1 + |s|^2); 0 at s = 0. */
            squash(p, a, lengths, factors);
            set_zero(part, O);
            add_dots(part, a->sums, g_capsules, O, D);
            LOOP for (int o = 0; o < O; o++) {
                float length = lengths[o], square = length * length, above = 1.0f + square;
                part[o] *= length > 0.0f ? (1.0f - square) / (above * above * length) : 0.0f;
            }
            if (D == 1) {
                LOOP for (int o = 0; o < O; o++) g_capsules[o] = factors[o] * g_capsules[o] + part[o] * a->sums[o];
            } else {
                for (int o = 0; o < O; o++)
                    LOOP for (int d = o * D; d < o * D + D; d++)
                        g_capsules[d] = factors[o] * g_capsules[d] + part[o] * a->sums[d];
            }
            set_zero(g_weights, I * O);
            for (int i = 0; i < I; i++) {
                add_dots(g_weights + i * O, g_capsules, votes + i * OD, O, D);
                add_scaled(g_votes + i * OD, a->weights + i * O, g_capsules, O, D);
            }
            if (p->normalize) { /* to the log assignments, then to the logits */
                set_zero(part, O);
                for (int i = 0; i < I; i++)
                    LOOP for (int o = 0; o < O; o++) part[o] += a->weights[i * O + o] * g_weights[i * O + o];
                for (int i = 0; i < I; i++) {
                    float *g = g_weights + i * O;
                    LOOP for (int o = 0; o < O; o++) g[o] = a->weights[i * O + o] * (g[o] - part[o]);
                    const float all = sum_of(g, O);
                    LOOP for (int o = 0; o < O; o++) g_logits[i * O + o] += g[o] - a->shares[i * O + o] * all;
                }
            } else {
                for (int i = 0; i < I; i++) {
                    const float *share = a->shares + i * O, *g = g_weights + i * O;
                    const float all = dot(share, g, O);
                    LOOP for (int o = 0; o < O; o++) g_logits[i * O + o] += share[o] * (g[o] - all);
                }
            }
        }
        scatter(p, n, I, kept, g_votes, NULL);
    }
}

EVERY_PROCESSOR(dynamic_backward, (const Problem *p, int from, int to, float *scratch), (p, from, to, scratch))

#endif
