/* Parts of a training step on the CPU: dropout, and the loss of a row of scores with its gradient.
 *
 * Numbers are float32, or bfloat16 with float32 inside.
 */
#ifndef HF_CAPSULE_MT_TRAINING_H
#define HF_CAPSULE_MT_TRAINING_H

#include <stddef.h>

#include "vector_math.h"

INLINE float widened(uint16_t number) {
    union { uint32_t i; float f; } bits = {(uint32_t)number << 16};
    return bits.f;
}

/* To the nearest bfloat16, ties to even. NaN stays NaN. */
INLINE uint16_t rounded(float number) {
    union { float f; uint32_t i; } bits = {number};
    const uint32_t up = (bits.i + 0x7fffu + ((bits.i >> 16) & 1u)) >> 16;
    return number == number ? (uint16_t)up : (uint16_t)0x7fc0u;
}

/* Random bits: Philox4x32-10 (Salmon et al. 2011). Block `n` of four numbers depends on the key and on n alone, so any
 * number of threads makes the same bits, and the backward pass makes them again. */
#define LANES 16
#define RANDOM_BLOCK (4 * LANES) /* numbers made at a time */

INLINE void random_bits(uint64_t key, uint64_t first_block, uint32_t *restrict bits) {
    uint32_t a[LANES], b[LANES], c[LANES], d[LANES];
    uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
    LOOP for (int k = 0; k < LANES; k++) {
        a[k] = (uint32_t)first_block + (uint32_t)k;
        b[k] = (uint32_t)(first_block >> 32);
        c[k] = d[k] = 0;
    }
    for (int round = 0; round < 10; round++) {
        LOOP for (int k = 0; k < LANES; k++) {
            const uint64_t left = (uint64_t)0xD2511F53u * a[k], right = (uint64_t)0xCD9E8D57u * c[k];
            a[k] = (uint32_t)(right >> 32) ^ b[k] ^ low;
            c[k] = (uint32_t)(left >> 32) ^ d[k] ^ high;
            b[k] = (uint32_t)right;
            d[k] = (uint32_t)left;
        }
        low += 0x9E3779B9u, high += 0xBB67AE85u;
    }
    LOOP for (int k = 0; k < LANES; k++) {
        bits[k] = a[k], bits[LANES + k] = b[k], bits[2 * LANES + k] = c[k], bits[3 * LANES + k] = d[k];
    }
}

typedef struct {
    const void *in;
    void *out;          /* may be `in` */
    int64_t from, to;   /* of the numbers; `from` is a multiple of RANDOM_BLOCK */
    int half;           /* 1 for bfloat16 */
    uint64_t key;
    uint32_t threshold; /* a number is dropped if its random bits are below */
    float scale;        /* of the others */
} Dropout;

INLINE void dropout_body(const Dropout *d) {
    uint32_t bits[RANDOM_BLOCK];
    const uint32_t threshold = d->threshold;
    const float scale = d->scale;
    for (int64_t start = d->from; start < d->to; start += RANDOM_BLOCK) {
        const int count = d->to - start < RANDOM_BLOCK ? (int)(d->to - start) : RANDOM_BLOCK;
        random_bits(d->key, (uint64_t)start / 4, bits);
        if (d->half) {
            const uint16_t *in = (const uint16_t *)d->in + start;
            uint16_t *out = (uint16_t *)d->out + start;
            LOOP for (int k = 0; k < count; k++) out[k] = bits[k] < threshold ? 0 : rounded(widened(in[k]) * scale);
        } else {
            const float *in = (const float *)d->in + start;
            float *out = (float *)d->out + start;
            LOOP for (int k = 0; k < count; k++) out[k] = bits[k] < threshold ? 0.0f : in[k] * scale;
        }
    }
}
EVERY_PROCESSOR(dropout, (const Dropout *d), (d))

typedef struct {
    void *scores;            /* [rows, words]; replaced by the gradient if there are `weights` */
    const float *bias;       /* [words], added to the scores, or NULL */
    const int64_t *labels;   /* [rows], each below `words`, or NULL for losses without a target */
    const float *weights;    /* [rows], of the gradient, or NULL for none */
    float *norms, *targets, *means; /* [rows]: log of the sum of exponentials, score of the label, mean of the scores */
    int words, half;
    float smoothing;
} Rows;

/* The gradient of a row is weight * (softmax - (1 - smoothing) [label] - smoothing / words). */
INLINE void loss_rows_body(const Rows *r, int from, int to, float *restrict scratch) {
    const int words = r->words;
    for (int row = from; row < to; row++) {
        const size_t start = (size_t)row * (size_t)words;
        uint16_t *half = (uint16_t *)r->scores + start;
        float *full = (float *)r->scores + start;
        float most = -INFINITY, all = 0.0f, sum = 0.0f;
        if (r->half) {
            LOOP for (int v = 0; v < words; v++) scratch[v] = widened(half[v]);
        } else {
            memcpy(scratch, full, sizeof(float) * (size_t)words);
        }
        if (r->bias) {
            LOOP for (int v = 0; v < words; v++) scratch[v] += r->bias[v];
        }
        MOST(most) for (int v = 0; v < words; v++) most = scratch[v] > most ? scratch[v] : most;
        SUM(all) for (int v = 0; v < words; v++) all += scratch[v];
        const int label = r->labels ? (int)r->labels[row] : -1;
        r->targets[row] = label < 0 ? 0.0f : scratch[label];
        r->means[row] = all / (float)words;
        SUM(sum) for (int v = 0; v < words; v++) {
            scratch[v] = exp_f(scratch[v] - most);
            sum += scratch[v];
        }
        r->norms[row] = most + log_f(sum);
        if (!r->weights) continue;
        const float weight = r->weights[row], scale = weight / sum, less = weight * r->smoothing / (float)words;
        const float of_label = label < 0 ? 0.0f : scratch[label] * scale - less - weight * (1.0f - r->smoothing);
        if (r->half) {
            LOOP for (int v = 0; v < words; v++) half[v] = rounded(scratch[v] * scale - less);
            if (label >= 0) half[label] = rounded(of_label);
        } else {
            LOOP for (int v = 0; v < words; v++) full[v] = scratch[v] * scale - less;
            if (label >= 0) full[label] = of_label;
        }
    }
}
EVERY_PROCESSOR(loss_rows, (const Rows *r, int from, int to, float *scratch), (r, from, to, scratch))

#endif
