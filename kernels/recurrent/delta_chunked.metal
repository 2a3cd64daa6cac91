{% set counted = channels_of_group * groups != values %}
{% set line_pitch = rows + 4 %}
// What the memory of each value head says to the queries of rows, as if it had learnt one row's key and value after the other:
// S = decay * S, then S += k (strength * (v - S k)), and the result is {{ scale }} * S q, where q and k have been divided by
// sqrt(sum of squares + {{ epsilon }}). Heads: {{ heads }} over {{ key_heads }}.
//
// Rows of a slot are taken {{ rows }} at a time. With d(i, j) what is left at row i of what row j has brought, and s(i) of what there
// was before, what row i teaches is
//     u(i) = strength(i) * (v(i) - s(i) S k(i) - sum over j < i of d(i, j) (k(i) k(j)) u(j)),
// which is solved row after row, and all else is products of matrices:
//     said(i) = s(i) S q(i) + sum over j <= i of d(i, j) (q(i) k(j)) u(j),
//     S = s(last) S + sum over j of d(last, j) u(j) k(j).
// Each d is of a sum of logarithms of its own: none is a difference, or more than 1.
//
// A row of S, for a channel of values, knows nothing of others: a threadgroup has {{ channels_of_group }} of a head's {{ values }}, a simdgroup 16,
// as two matrices of 8 by 8 for each 8 channels of keys. They are read where a slot's rows begin, and written where they end.
// In row `line` of a matrix a lane has columns `pair` and `pair + 1`.
{% if gated %}
//
// Queries, keys and values are side by side in `convolved`. In `inputs` strengths and times are last. What a head says is left
// as it is, for a step that norms all of it.
{% endif %}
struct {{ args }} {
    uint rows;
};

// grid: {{ groups }}, {{ heads }}
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
{% if gated %}
    device const float* convolved [[buffer({{ slot() }})]],
    device const float* inputs [[buffer({{ slot() }})]],
{% else %}
    device const float* query [[buffer({{ slot() }})]],
    device const float* key [[buffer({{ slot() }})]],
    device const float* value [[buffer({{ slot() }})]],
    device const float* time [[buffer({{ slot() }})]],
    device const float* strength [[buffer({{ slot() }})]],
{% endif %}
    device const float* rate [[buffer({{ slot() }})]],
    device const float* bias [[buffer({{ slot() }})]],
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* memory [[buffer({{ slot() }})]],
    device float* heads [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]],
{% if simdgroups > 1 %}
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
{% endif %}
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float queries[{{ rows * pitch }}];  // {{ pitch }} floats a row, as are keys
    threadgroup float keys[{{ rows * pitch }}];
    threadgroup float taught[{{ rows * line_pitch }}];  // in row i, less strength(i) * d(i, j) * (k(i) k(j)) of rows j before it
    threadgroup float asked[{{ rows * line_pitch }}];  // in row i, d(i, j) * (q(i) k(j)) of rows j up to it
    threadgroup float logs[{{ rows }}];  // of each row's decay
    threadgroup float strengths[{{ rows }}];
    threadgroup float since[{{ rows }}];  // what is left at a row of what there was before the first
    threadgroup float until[{{ rows }}];  // what is left at the last row of what a row has brought
    const uint head = group.y;
    const uint key_head = head / {{ group }}u;
    const uint line = ((lane >> 2u) & 4u) + ((lane >> 1u) & 3u);
    const uint pair = ((lane >> 2u) & 2u) * 2u + (lane & 1u) * 2u;
{% if simdgroups > 1 %}
    const uint channel = group.x * {{ channels_of_group }}u + simdgroup_id * 16u + line;
{% else %}
    const uint channel = group.x * 16u + line;
{% endif %}

    simdgroup_matrix<float, 8, 8> held[2][{{ matrices }}];
    uint count = 0u;
    for (uint first = 0u; first < args.rows; first += count) {
        // Rows that follow each other, up to {{ rows }}.
        const uint slot = slots[first];
        const uint position = positions[first];
        const uint ahead = min(first + lane, args.rows - 1u);
        const bool is_row = first + lane == ahead && slots[ahead] == slot;
        const bool follows = is_row && positions[ahead] == position + lane;
        count = simd_min(follows ? {{ rows }}u : lane);

        bool begins = true;
        if (first > 0u) {
            begins = slots[first - 1u] != slot || positions[first - 1u] + 1u != position;
        }
        device float* own = memory + (ulong(slot) * {{ heads }}ul + ulong(head)) * {{ values * keys }}ul;
        if (begins) {
            #pragma unroll
            for (uint v = 0u; v < 2u; v++) {
                #pragma unroll
                for (uint m = 0u; m < {{ matrices }}u; m++) {
                    #pragma unroll
                    for (uint e = 0u; e < 2u; e++) {
                        const uint row = channel + v * 8u;
                        const uint column = m * 8u + pair + e;
                        float number = 0.0f;
                        if (position > 0u{% if counted %} && row < {{ values }}u{% endif %}{% if padded != keys %} && column < {{ keys }}u{% endif %}) {
                            number = own[row * {{ keys }}u + column];
                        }
                        held[v][m].thread_elements()[e] = number;
                    }
                }
            }
        }

        // Values are under way while queries and keys are made of unit length, by {{ row_threads }} threads a row. Rows past the last repeat it.
        float brought[2][{{ blocks }}][2];
        #pragma unroll
        for (uint v = 0u; v < 2u; v++) {
            #pragma unroll
            for (uint b = 0u; b < {{ blocks }}u; b++) {
                #pragma unroll
                for (uint e = 0u; e < 2u; e++) {
                    const uint row = first + min(b * 8u + pair + e, count - 1u);
{% if counted %}
                    const uint own_channel = min(channel + v * 8u, {{ values - 1 }}u);
{% else %}
                    const uint own_channel = channel + v * 8u;
{% endif %}
{% if gated %}
                    const uint place = {{ 2 * key_heads * keys }}u + head * {{ values }}u + own_channel;
                    brought[v][b][e] = convolved[row * {{ channels }}u + place];
{% else %}
                    brought[v][b][e] = value[(row * {{ heads }}u + head) * {{ values }}u + own_channel];
{% endif %}
                }
            }
        }
{% include "recurrent/parts/normalize_qk" %}
        threadgroup_barrier(mem_flags::mem_threadgroup);

        // What the memory knew before these rows of their keys, and says to their queries.
        simdgroup_matrix<float, 8, 8> learnt[2][{{ blocks }}];
        simdgroup_matrix<float, 8, 8> said[2][{{ blocks }}];
        #pragma unroll
        for (uint v = 0u; v < 2u; v++) {
            #pragma unroll
            for (uint b = 0u; b < {{ blocks }}u; b++) {
                learnt[v][b] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
                said[v][b] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            }
        }
        #pragma unroll
        for (uint m = 0u; m < {{ matrices }}u; m++) {
            #pragma unroll
            for (uint b = 0u; b < {{ blocks }}u; b++) {
                simdgroup_matrix<float, 8, 8> key_columns;
                simdgroup_matrix<float, 8, 8> query_columns;
                const uint place = b * {{ 8 * pitch }}u + m * 8u;
                simdgroup_load(key_columns, keys + place, {{ pitch }}ul, ulong2(0ul, 0ul), true);
                add_products(learnt[0][b], learnt[1][b], held[0][m], held[1][m], key_columns);
                simdgroup_load(query_columns, queries + place, {{ pitch }}ul, ulong2(0ul, 0ul), true);
                add_products(said[0][b], said[1][b], held[0][m], held[1][m], query_columns);
            }
        }

{% include "recurrent/parts/gram" %}
        threadgroup_barrier(mem_flags::mem_threadgroup);

{% include "recurrent/parts/triangular_solve" %}

        // What is said.
        #pragma unroll
        for (uint b = 0u; b < {{ blocks }}u; b++) {
            #pragma unroll
            for (uint v = 0u; v < 2u; v++) {
                #pragma unroll
                for (uint e = 0u; e < 2u; e++) {
                    said[v][b].thread_elements()[e] *= since[b * 8u + pair + e];
                }
            }
            #pragma unroll
            for (uint a = 0u; a <= b; a++) {
                simdgroup_matrix<float, 8, 8> right;
                threadgroup float* source = asked + b * {{ 8 * line_pitch }}u + a * 8u;
                simdgroup_load(right, source, {{ line_pitch }}ul, ulong2(0ul, 0ul), true);
                add_products(said[0][b], said[1][b], learnt[0][a], learnt[1][a], right);
            }
            #pragma unroll
            for (uint v = 0u; v < 2u; v++) {
                #pragma unroll
                for (uint e = 0u; e < 2u; e++) {
                    const uint i = b * 8u + pair + e;
                    if (i < count{% if counted %} && channel + v * 8u < {{ values }}u{% endif %}) {
                        const uint place = ((first + i) * {{ heads }}u + head) * {{ values }}u + channel + v * 8u;
                        heads[place] = said[v][b].thread_elements()[e];
                    }
                }
            }
        }

        // What is left in the memory.
        #pragma unroll
        for (uint v = 0u; v < 2u; v++) {
            #pragma unroll
            for (uint b = 0u; b < {{ blocks }}u; b++) {
                #pragma unroll
                for (uint e = 0u; e < 2u; e++) {
                    learnt[v][b].thread_elements()[e] *= until[b * 8u + pair + e];
                }
            }
        }
        const float left = since[{{ rows - 1 }}];
        #pragma unroll
        for (uint m = 0u; m < {{ matrices }}u; m++) {
            #pragma unroll
            for (uint v = 0u; v < 2u; v++) {
                held[v][m].thread_elements()[0] *= left;
                held[v][m].thread_elements()[1] *= left;
            }
            #pragma unroll
            for (uint b = 0u; b < {{ blocks }}u; b++) {
                simdgroup_matrix<float, 8, 8> key_rows;
                simdgroup_load(key_rows, keys + b * {{ 8 * pitch }}u + m * 8u, {{ pitch }}ul);
                add_products(held[0][m], held[1][m], learnt[0][b], learnt[1][b], key_rows);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        bool ends = true;
        if (first + count < args.rows) {
            ends = slots[first + count] != slot || positions[first + count] != position + count;
        }
        if (ends) {
            #pragma unroll
            for (uint v = 0u; v < 2u; v++) {
                #pragma unroll
                for (uint m = 0u; m < {{ matrices }}u; m++) {
                    #pragma unroll
                    for (uint e = 0u; e < 2u; e++) {
                        const uint row = channel + v * 8u;
                        const uint column = m * 8u + pair + e;
{% if counted or padded != keys %}
                        if ({% if counted %}row < {{ values }}u{% endif %}{% if counted and padded != keys %} && {% endif %}{% if padded != keys %}column < {{ keys }}u{% endif %}) {
                            own[row * {{ keys }}u + column] = held[v][m].thread_elements()[e];
                        }
{% else %}
                        own[row * {{ keys }}u + column] = held[v][m].thread_elements()[e];
{% endif %}
                    }
                }
            }
        }
    }
}
