{% set counted = channels_of_group * groups != values %}
{% set line_pitch = rows + 4 %}
// Chunked gated delta rule. For each row in order, the recurrent state S of each value head is updated, S =
// decay * S, then S += k (beta * (v - S k)), and the result is {{ scale }} * S q, where q and k are divided
// by sqrt(sum of squares + {{ epsilon }}). Heads: {{ heads }} over {{ key_heads }}.
//
// Rows of a slot are processed in chunks of {{ rows }}. With d(i, j) the decay from row j to row i, and s(i)
// the decay from the start of the chunk to row i, the update of row i is
//     u(i) = beta(i) * (v(i) - s(i) S k(i) - sum over j < i of d(i, j) (k(i) k(j)) u(j)),
// which is solved row by row. Everything else is matrix products:
//     o(i) = s(i) S q(i) + sum over j <= i of d(i, j) (q(i) k(j)) u(j),
//     S = s(last) S + sum over j of d(last, j) u(j) k(j).
// Each d is the exponential of its own sum of logarithms, so it is at most 1 and no differences are taken.
//
// Rows of S (value channels) are independent: a threadgroup has {{ channels_of_group }} of a head's
// {{ values }}, a simdgroup 16, as two 8 by 8 matrices for each 8 key channels. The state is read at a slot's
// first row and written after its last. In row `line` of a matrix a lane has columns `pair` and `pair + 1`.
{% if gated %}
//
// `convolved` has queries, keys and values side by side. In `inputs` the beta logits and dt are last. The
// output is written without the gated norm, which a separate step applies.
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
    device const float* dt [[buffer({{ slot() }})]],
    device const float* beta [[buffer({{ slot() }})]],
{% endif %}
    device const float* a_log [[buffer({{ slot() }})]],
    device const float* dt_bias [[buffer({{ slot() }})]],
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* recurrent_state [[buffer({{ slot() }})]],
    device float* heads [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]],
{% if simdgroups > 1 %}
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
{% endif %}
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float queries[{{ rows * pitch }}];  // {{ pitch }} floats per row; keys likewise
    threadgroup float keys[{{ rows * pitch }}];
    threadgroup float k_dot_k[{{ rows * line_pitch }}];  // in row i, -beta(i) * d(i, j) * (k(i) k(j)) for j < i
    threadgroup float q_dot_k[{{ rows * line_pitch }}];  // in row i, d(i, j) * (q(i) k(j)) for j <= i
    threadgroup float logs[{{ rows }}];  // logarithm of each row's decay
    threadgroup float betas[{{ rows }}];
    threadgroup float decay_before[{{ rows }}];  // decay from the start of the chunk to each row
    threadgroup float decay_after[{{ rows }}];  // decay from each row to the end of the chunk
    const uint head = group.y;
    const uint key_head = head / {{ group }}u;
    const uint line = ((lane >> 2u) & 4u) + ((lane >> 1u) & 3u);
    const uint pair = ((lane >> 2u) & 2u) * 2u + (lane & 1u) * 2u;
{% if simdgroups > 1 %}
    const uint channel = group.x * {{ channels_of_group }}u + simdgroup_id * 16u + line;
{% else %}
    const uint channel = group.x * 16u + line;
{% endif %}

    simdgroup_matrix<float, 8, 8> state[2][{{ matrices }}];
    uint count = 0u;
    for (uint first = 0u; first < args.rows; first += count) {
        // Consecutive rows of a slot, up to {{ rows }}.
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
        device float* head_state = recurrent_state + (ulong(slot) * {{ heads }}ul + ulong(head)) * {{ values * keys }}ul;
        if (begins) {
            #pragma unroll
            for (uint v = 0u; v < 2u; v++) {
                #pragma unroll
                for (uint m = 0u; m < {{ matrices }}u; m++) {
                    #pragma unroll
                    for (uint e = 0u; e < 2u; e++) {
                        const uint row = channel + v * 8u;
                        const uint column = m * 8u + pair + e;
                        float element = 0.0f;
                        if (position > 0u{% if counted %} && row < {{ values }}u{% endif %}{% if padded != keys %} && column < {{ keys }}u{% endif %}) {
                            element = head_state[row * {{ keys }}u + column];
                        }
                        state[v][m].thread_elements()[e] = element;
                    }
                }
            }
        }

        // Values are in flight while queries and keys are normalized by {{ row_threads }} threads per row.
        // Rows past the last repeat it.
        float row_values[2][{{ blocks }}][2];
        #pragma unroll
        for (uint v = 0u; v < 2u; v++) {
            #pragma unroll
            for (uint b = 0u; b < {{ blocks }}u; b++) {
                #pragma unroll
                for (uint e = 0u; e < 2u; e++) {
                    const uint row = first + min(b * 8u + pair + e, count - 1u);
{% if counted %}
                    const uint value_channel = min(channel + v * 8u, {{ values - 1 }}u);
{% else %}
                    const uint value_channel = channel + v * 8u;
{% endif %}
{% if gated %}
                    const uint place = {{ 2 * key_heads * keys }}u + head * {{ values }}u + value_channel;
                    row_values[v][b][e] = convolved[row * {{ channels }}u + place];
{% else %}
                    row_values[v][b][e] = value[(row * {{ heads }}u + head) * {{ values }}u + value_channel];
{% endif %}
                }
            }
        }
{% include "recurrent/parts/normalize_qk" %}
        threadgroup_barrier(mem_flags::mem_threadgroup);

        // Products of the state before the chunk with keys and queries.
        simdgroup_matrix<float, 8, 8> updates[2][{{ blocks }}];
        simdgroup_matrix<float, 8, 8> output[2][{{ blocks }}];
        #pragma unroll
        for (uint v = 0u; v < 2u; v++) {
            #pragma unroll
            for (uint b = 0u; b < {{ blocks }}u; b++) {
                updates[v][b] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
                output[v][b] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
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
                add_products(updates[0][b], updates[1][b], state[0][m], state[1][m], key_columns);
                simdgroup_load(query_columns, queries + place, {{ pitch }}ul, ulong2(0ul, 0ul), true);
                add_products(output[0][b], output[1][b], state[0][m], state[1][m], query_columns);
            }
        }

{% include "recurrent/parts/gram" %}
        threadgroup_barrier(mem_flags::mem_threadgroup);

{% include "recurrent/parts/triangular_solve" %}

        // Output.
        #pragma unroll
        for (uint b = 0u; b < {{ blocks }}u; b++) {
            #pragma unroll
            for (uint v = 0u; v < 2u; v++) {
                #pragma unroll
                for (uint e = 0u; e < 2u; e++) {
                    output[v][b].thread_elements()[e] *= decay_before[b * 8u + pair + e];
                }
            }
            #pragma unroll
            for (uint a = 0u; a <= b; a++) {
                simdgroup_matrix<float, 8, 8> right;
                threadgroup float* source = q_dot_k + b * {{ 8 * line_pitch }}u + a * 8u;
                simdgroup_load(right, source, {{ line_pitch }}ul, ulong2(0ul, 0ul), true);
                add_products(output[0][b], output[1][b], updates[0][a], updates[1][a], right);
            }
            #pragma unroll
            for (uint v = 0u; v < 2u; v++) {
                #pragma unroll
                for (uint e = 0u; e < 2u; e++) {
                    const uint i = b * 8u + pair + e;
                    if (i < count{% if counted %} && channel + v * 8u < {{ values }}u{% endif %}) {
                        const uint place = ((first + i) * {{ heads }}u + head) * {{ values }}u + channel + v * 8u;
                        heads[place] = output[v][b].thread_elements()[e];
                    }
                }
            }
        }

        // State after the chunk.
        #pragma unroll
        for (uint v = 0u; v < 2u; v++) {
            #pragma unroll
            for (uint b = 0u; b < {{ blocks }}u; b++) {
                #pragma unroll
                for (uint e = 0u; e < 2u; e++) {
                    updates[v][b].thread_elements()[e] *= decay_after[b * 8u + pair + e];
                }
            }
        }
        const float left = decay_before[{{ rows - 1 }}];
        #pragma unroll
        for (uint m = 0u; m < {{ matrices }}u; m++) {
            #pragma unroll
            for (uint v = 0u; v < 2u; v++) {
                state[v][m].thread_elements()[0] *= left;
                state[v][m].thread_elements()[1] *= left;
            }
            #pragma unroll
            for (uint b = 0u; b < {{ blocks }}u; b++) {
                simdgroup_matrix<float, 8, 8> key_rows;
                simdgroup_load(key_rows, keys + b * {{ 8 * pitch }}u + m * 8u, {{ pitch }}ul);
                add_products(state[0][m], state[1][m], updates[0][b], updates[1][b], key_rows);
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
                            head_state[row * {{ keys }}u + column] = state[v][m].thread_elements()[e];
                        }
{% else %}
                        head_state[row * {{ keys }}u + column] = state[v][m].thread_elements()[e];
{% endif %}
                    }
                }
            }
        }
    }
}
