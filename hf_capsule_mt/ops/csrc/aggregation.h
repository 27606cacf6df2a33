/* Routing over the layers of a decoder for one step, in int8: Eq. (7)-(16), DLA. The Python version is
 * `RoutedCombination` of modeling/capsules/layer_aggregation.py.
 *
 * R rows, L layers, width d, N output capsules of size d / N.
 */
#ifndef HF_CAPSULE_MT_AGGREGATION_H
#define HF_CAPSULE_MT_AGGREGATION_H

#include "dynamic_routing.h"
#include "em_routing.h"
#include "int8_linear.h"

#if HAS_INT8

typedef struct {
    int64_t layers, width, capsules, iterations;
    int64_t em, all_layers, normalize;
    double inverse_temperature, variance_floor;
    const float *activation;      /* [L, d], the weights of Eq. (10); EM routing only */
    const float *beta_a, *beta_u; /* [N], EM routing */
    const Linear *inputs;         /* F of Eq. (8): one for all layers, or L */
    const Linear *votes;          /* L, of Eq. (7) */
} Aggregation;

INLINE Problem aggregation_problem(const Aggregation *a, int rows) {
    Problem p;
    memset(&p, 0, sizeof p);
    p.N = rows, p.I = (int)a->layers, p.O = (int)a->capsules, p.D = (int)(a->width / a->capsules);
    p.T = (int)a->iterations;
    p.stride_i = a->width, p.stride_n = a->width * a->layers;
    p.beta_a = a->beta_a, p.beta_u = a->beta_u;
    p.normalize = (int)a->normalize;
    p.inverse_temperature = a->inverse_temperature, p.variance_floor = (float)a->variance_floor;
    p.kept = a->em ? 2 : 1;
    p.vote_limit = VOTE_LIMIT;
    return p;
}

INLINE size_t aggregation_bytes(const Aggregation *a, int rows) {
    const Problem p = aggregation_problem(a, rows);
    const size_t all = (size_t)(a->layers * a->width) * (size_t)rows, L = (size_t)a->layers;
    return (3 * all + (L + 1) * (size_t)rows + (a->em ? em_scratch(&p) : dynamic_scratch(&p))) * sizeof(float) + all +
           (size_t)rows * 64 + 1024;
}

/* Route the layers' outputs, at `outputs[layer * stride_l + row * stride_r]`, into `aggregate` `[R, d]`. */
INLINE void aggregate_layers_body(const Aggregation *a, const float *outputs, int64_t stride_l, int64_t stride_r,
                                  int rows, float *aggregate, char *memory) {
    const int L = (int)a->layers, d = (int)a->width, all = L * d;
    float *stacked = (float *)(void *)memory, *inputs = stacked + (size_t)rows * all;
    float *votes = inputs + (size_t)rows * all, *log_activations = votes + (size_t)rows * all;
    float *units = log_activations + (size_t)rows * L, *scratch = units + rows;
    Problem p = aggregation_problem(a, rows);
    uint8_t *bytes = (uint8_t *)(scratch + (a->em ? em_scratch(&p) : dynamic_scratch(&p)) + 64);
    for (int r = 0; r < rows; r++)
        for (int l = 0; l < L; l++)
            memcpy(stacked + (size_t)r * all + l * d, outputs + l * stride_l + r * stride_r, sizeof(float) * (size_t)d);
    for (int l = 0; l < (a->all_layers ? 1 : L); l++) {
        const Linear *linear = a->inputs + l;
        int8_round_body(linear, stacked + l * d, all, rows, 1, bytes, units);
        int8_outputs_body(linear, bytes, units, rows, inputs + l * d, all, 0, int8_blocks(linear));
    }
    LOOP for (int k = 0; k < rows * all; k++) inputs[k] = inputs[k] < 0.0f ? 0.0f : inputs[k];
    for (int l = 0; l < L; l++) {
        int8_round_body(a->votes + l, inputs + l * d, all, rows, 1, bytes, units);
        int8_outputs_body(a->votes + l, bytes, units, rows, votes + l * d, all, 0, int8_blocks(a->votes + l));
    }
    p.votes = votes, p.capsules = aggregate;
    if (!a->em) {
        dynamic_forward(&p, 0, rows, scratch);
        return;
    }
    for (int r = 0; r < rows; r++)
        for (int l = 0; l < L; l++) { /* log of the logistic function, at least log 1e-30 */
            const float x = dot(inputs + (size_t)r * all + l * d, a->activation + l * d, d);
            const float log_logistic = (x < 0.0f ? x : 0.0f) - log_f(1.0f + exp_f(x < 0.0f ? x : -x));
            log_activations[r * L + l] = log_logistic < -69.0775528f ? -69.0775528f : log_logistic;
        }
    p.log_activations = log_activations;
    em_forward(&p, 0, rows, scratch);
}

EVERY_PROCESSOR(aggregate_layers, (const Aggregation *a, const float *outputs, int64_t stride_l, int64_t stride_r,
                                   int rows, float *aggregate, char *memory),
                (a, outputs, stride_l, stride_r, rows, aggregate, memory))

#endif
#endif
