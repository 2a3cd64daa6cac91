{% set blocks = tile // 8 %}
{% set capacity = "args.capacity" if ring else "args.context" %}
{% set modulo = " % " ~ ring ~ "u" if ring else "" %}
{% set factor = scale if softcap else scale_base_2 %}
{% set guarded = padded != width %}
{# The channels of a lane's two elements of matrix j of a packet, relative to the packet. #}
{% set one = "j / 2u * 4u + j % 2u" if quantized else "2u * j" %}
{% set other = one ~ (" + 2u" if quantized else " + 1u") %}
{# A packet at a place of the cache. #}
{% macro cached(of) %}
{% if quantized %}{{ load }}({{ of }}){% else %}*(device const {{ packet }}*)({{ of }}){% endif %}
{%- endmacro %}
{# The two elements of matrix j. #}
{% macro elements(packet) %}
{% if quantized %}codes_to_f16({{ packet }}[j / 2u], j % 2u)
{%- elif element == "float" and pairs == 1 %}{{ packet }}
{%- elif element == "float" %}float2({{ packet }}[2u * j], {{ packet }}[2u * j + 1u])
{%- elif pairs == 1 %}as_type<half2>({{ packet }})
{%- else %}as_type<half2>({{ packet }}[j])
{%- endif %}
{%- endmacro %}
{# Loads the queries of packet i to matrices `at` + j. #}
{% macro load_queries(at) %}
#pragma unroll
for (uint j = 0u; j < {{ pairs }}u; j++) {
    const uint c = (4u * i + line / 2u) * {{ per_packet }}u + (is_second ? {{ other }} : {{ one }});
{% if guarded %}
    queries[{{ at }}j].thread_elements()[0] = query[0][c % {{ width }}u];
    queries[{{ at }}j].thread_elements()[1] = query[1][c % {{ width }}u];
{% else %}
    queries[{{ at }}j].thread_elements()[0] = query[0][c];
    queries[{{ at }}j].thread_elements()[1] = query[1][c];
{% endif %}
}
{% endmacro %}
// softmax({{ scale }} * q k) v for many rows. A query row is a row of one head. A threadgroup processes
// {{ lines }} query rows: {{ rows_each }} rows of {{ heads_each }} query heads that share a KV head, {{ tile }} positions at a time.
// The softmax is online and uses powers of 2, with scores scaled accordingly.
//
// A simdgroup has 8 query rows and shares nothing with the others. Its lanes load keys and values straight
// into factors of products, {{ per_packet }} channels at once. In row `line` of a matrix a lane has columns `pair` and
// `pair + 1`. Keys are the left factor of scores, which are therefore transposed: a row for each position, a
// column for each query row.
{% if quantized %}
//
// Products are those of codes. Scores are multiplied by the scales of keys, weights by those of values.
{% endif %}
//
// Rows of a simdgroup may belong to several slots. Each run of rows of one slot is processed with that slot's
// cache, from its first position. Results of other rows are discarded.
{% if gates %}
//
// The result is multiplied by the sigmoids of gates.
{% endif %}
{% if ring %}
//
// The cache is a ring: position p is stored at p % {{ ring }}.
{% endif %}
struct {{ args }} {
    uint rows;
    uint context;
{% if ring %}
    uint capacity;
{% endif %}
};

// grid: ceil(rows / {{ rows_each }}), {{ query_heads // heads_each }}
[[max_total_threads_per_threadgroup(128)]]
kernel void {{ name }}(
    device const float* q [[buffer({{ slot() }})]],
    device const {{ element }}* keys [[buffer({{ slot() }})]],
    device const {{ element }}* values [[buffer({{ slot() }})]],
{% if sinks %}
    device const float* sinks [[buffer({{ slot() }})]],
{% endif %}
{% if gates %}
    device const float* gates [[buffer({{ slot() }})]],
{% endif %}
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* heads [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
{% if has_tensors %}
#if __METAL_VERSION__ >= 400
{% include "attention/parts/attend_tensors" %}
#else
{% endif %}
    const uint first = group.x * {{ rows_each }}u;
    const uint last = args.rows - 1u;
    const uint first_head = group.y * {{ heads_each }}u;
    const uint line = ((lane >> 2u) & 4u) + ((lane >> 1u) & 3u);
    const uint pair = ((lane >> 2u) & 2u) * 2u + (lane & 1u) * 2u;
    // The lane with row `pair` of column `line`, one of its two; that with the next row is two lanes further.
    const uint across = (pair & 4u) << 2u | (pair & 2u) << 1u | (line & 4u) << 1u | (line >> 1u & 1u);
    const bool is_second = line % 2u != 0u;

    // The query rows of this lane's columns: queries, and last position that they attend to.
{% if guarded %}
    // Past the last channel keys are zeros, and queries any of their own channels.
{% endif %}
    device const float* query[2];
    uint limit[2];
    #pragma unroll
    for (uint e = 0u; e < 2u; e++) {
        const uint query_row = simdgroup_id * 8u + pair + e;
        const uint from = min(first + query_row / {{ heads_each }}u, last);
        limit[e] = positions[from];
        query[e] = q + (from * {{ query_heads }}u + first_head + query_row % {{ heads_each }}u) * {{ width }}u;
    }
{% if keeps_queries %}
    simdgroup_matrix<float, 8, 8> queries[{{ matrices }}];
    #pragma unroll
    for (uint i = 0u; i < {{ packets }}u; i++) {
        {{ load_queries("i * " ~ pairs ~ "u + ") | indent(8) }}
    }
{% endif %}

    const uint rows = min({{ rows_each }}u, args.rows - first);
    const uint end_row = min((simdgroup_id * 8u + 7u) / {{ heads_each }}u + 1u, rows);
    for (uint begin = simdgroup_id * 8u / {{ heads_each }}u, end = begin; begin < end_row; begin = end) {
{% if window %}
        // The next run of rows of one slot, with its first and last positions.
        uint shortest = 0xffffffffu;
{% else %}
        // The next run of rows of one slot, with its last position.
{% endif %}
        const uint slot = slots[first + begin];
        uint longest = 0u;
        while (end < end_row && slots[first + end] == slot) {
{% if window %}
            shortest = min(shortest, positions[first + end]);
{% endif %}
            longest = max(longest, positions[first + end]);
            end++;
        }
        const ulong cached_head = ulong(slot) * {{ key_heads }}ul + ulong(first_head / {{ group }}u);
        const ulong first_place = cached_head * ulong({{ capacity }}) * {{ kv_stride }}ul;

        // Sums of values: a row for each query row. The maxima and this lane's part of the denominators are
        // those of its columns.
        float maximum[2];
        float total[2];
        #pragma unroll
        for (uint e = 0u; e < 2u; e++) {
{% if sinks %}
            // A sink is a score without a value.
            maximum[e] = {{ base_2 }} * sinks[first_head + (simdgroup_id * 8u + pair + e) % {{ heads_each }}u];
            total[e] = line == 0u ? 1.0f : 0.0f;
{% else %}
            maximum[e] = -1.0e38f;
            total[e] = 0.0f;
{% endif %}
        }
        simdgroup_matrix<float, 8, 8> sums[{{ matrices }}];
        #pragma unroll
        for (uint m = 0u; m < {{ matrices }}u; m++) {
            sums[m] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }

{% if window %}
        // Starts at the first position that any row attends to.
        const uint oldest = shortest >= {{ window }}u ? shortest - {{ window - 1 }}u : 0u;
        for (uint start = oldest; start <= longest; start += {{ tile }}u) {
{% else %}
        for (uint start = 0u; start <= longest; start += {{ tile }}u) {
{% endif %}
            // Positions past the last repeat it.
            ulong place[{{ blocks }}];
            simdgroup_matrix<float, 8, 8> scores[{{ blocks }}];
            #pragma unroll
            for (uint k = 0u; k < {{ blocks }}u; k++) {
                const uint p = min(start + k * 8u + line, longest){{ modulo }};
                place[k] = first_place + ulong(p) * {{ kv_stride }}ul;
                scores[k] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            }

            // Scores.
            #pragma unroll
            for (uint i = 0u; i < {{ packets }}u; i++) {
                const uint channel = (4u * i + pair / 2u) * {{ per_packet }}u;
                {{ packet }} key[{{ blocks }}];
                #pragma unroll
                for (uint k = 0u; k < {{ blocks }}u; k++) {
{% if guarded %}
                    key[k] = channel < {{ width }}u ? {{ cached("keys + place[k] + channel") }} : {{ packet }}({{ zero }});
{% else %}
                    key[k] = {{ cached("keys + place[k] + channel") }};
{% endif %}
                }
{% if not keeps_queries %}
                simdgroup_matrix<float, 8, 8> queries[{{ pairs }}];
                {{ load_queries("") | indent(16) }}
{% endif %}
{% if quantized %}
                simdgroup_matrix<float, 8, 8> sums_of_codes[{{ blocks }}];
                #pragma unroll
                for (uint k = 0u; k < {{ blocks }}u; k++) {
                    sums_of_codes[k] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
                }
{% endif %}
{% set sum = "sums_of_codes[k]" if quantized else "scores[k]" %}
{% set right = "queries[i * " ~ pairs ~ "u + j]" if keeps_queries else "queries[j]" %}
                #pragma unroll
                for (uint j = 0u; j < {{ pairs }}u; j++) {
                    #pragma unroll
                    for (uint k = 0u; k < {{ blocks }}u; k++) {
                        const {{ staged }}2 elements = {{ elements("key[k]") }};
                        simdgroup_matrix<{{ staged }}, 8, 8> left;
                        left.thread_elements()[0] = elements.x;
                        left.thread_elements()[1] = elements.y;
                        simdgroup_multiply_accumulate({{ sum }}, left, {{ right }}, {{ sum }});
                    }
                }
{% if quantized %}
                #pragma unroll
                for (uint k = 0u; k < {{ blocks }}u; k++) {
                    const float code_scale = float(*(device const half*)(keys + place[k] + {{ width }}u + 2u * i));
                    scores[k].thread_elements()[0] += code_scale * sums_of_codes[k].thread_elements()[0];
                    scores[k].thread_elements()[1] += code_scale * sums_of_codes[k].thread_elements()[1];
                }
{% endif %}
            }

            // Softmax weights: eight lanes share a query row.
            float rescale[2];
            #pragma unroll
            for (uint e = 0u; e < 2u; e++) {
                float highest = maximum[e];
                #pragma unroll
                for (uint k = 0u; k < {{ blocks }}u; k++) {
                    const uint p = start + k * 8u + line;
                    const float score = {{ factor }} * scores[k].thread_elements()[e];
{% if window %}
                    const bool live = p <= limit[e] && limit[e] - p < {{ window }}u;
{% else %}
                    const bool live = p <= limit[e];
{% endif %}
{% if softcap %}
                    scores[k].thread_elements()[e] = live ? {{ base_2 }} * softcap(score, {{ softcap }}) : -2.0e38f;
{% else %}
                    scores[k].thread_elements()[e] = live ? score : -2.0e38f;
{% endif %}
                    highest = max(highest, scores[k].thread_elements()[e]);
                }
                highest = max(highest, simd_shuffle_xor(highest, ushort(2)));
                highest = max(highest, simd_shuffle_xor(highest, ushort(4)));
                highest = max(highest, simd_shuffle_xor(highest, ushort(16)));
                rescale[e] = exp2(maximum[e] - highest);
                maximum[e] = highest;
                total[e] *= rescale[e];
                #pragma unroll
                for (uint k = 0u; k < {{ blocks }}u; k++) {
                    const float weight = exp2(scores[k].thread_elements()[e] - highest);
                    scores[k].thread_elements()[e] = weight;
                    total[e] += weight;
                }
            }
            const float rescale_one = simd_shuffle(rescale[0], ushort(across));
            const float rescale_other = simd_shuffle(rescale[1], ushort(across));
            #pragma unroll
            for (uint m = 0u; m < {{ matrices }}u; m++) {
                sums[m].thread_elements()[0] *= is_second ? rescale_other : rescale_one;
                sums[m].thread_elements()[1] *= is_second ? rescale_other : rescale_one;
            }

            // Sums of values.
            #pragma unroll
            for (uint k = 0u; k < {{ blocks }}u; k++) {
                float transposed[2];
                #pragma unroll
                for (uint e = 0u; e < 2u; e++) {
                    const ushort from = ushort(across + 2u * e);
                    const float weight_one = simd_shuffle(scores[k].thread_elements()[0], from);
                    const float weight_other = simd_shuffle(scores[k].thread_elements()[1], from);
                    transposed[e] = is_second ? weight_other : weight_one;
                }
{% if not quantized %}
                simdgroup_matrix<float, 8, 8> weights;
                weights.thread_elements()[0] = transposed[0];
                weights.thread_elements()[1] = transposed[1];
{% endif %}
                #pragma unroll
                for (uint i = 0u; i < {{ packets }}u; i++) {
                    const uint channel = (4u * i + pair / 2u) * {{ per_packet }}u;
{% if guarded %}
                    const {{ packet }} value = channel < {{ width }}u ? {{ cached("values + place[k] + channel") }} : {{ packet }}({{ zero }});
{% else %}
                    const {{ packet }} value = {{ cached("values + place[k] + channel") }};
{% endif %}
{% if quantized %}
                    const float code_scale = float(*(device const half*)(values + place[k] + {{ width }}u + 2u * i));
                    simdgroup_matrix<float, 8, 8> weights;
                    weights.thread_elements()[0] = transposed[0] * simd_shuffle(code_scale, ushort(across));
                    weights.thread_elements()[1] = transposed[1] * simd_shuffle(code_scale, ushort(across + 2u));
{% endif %}
                    #pragma unroll
                    for (uint j = 0u; j < {{ pairs }}u; j++) {
                        const {{ staged }}2 elements = {{ elements("value") }};
                        simdgroup_matrix<{{ staged }}, 8, 8> right;
                        right.thread_elements()[0] = elements.x;
                        right.thread_elements()[1] = elements.y;
                        const uint m = i * {{ pairs }}u + j;
                        simdgroup_multiply_accumulate(sums[m], weights, right, sums[m]);
                    }
                }
            }
        }

        // Divide by the denominators and store the run's rows: those of row `line` of the sums.
        #pragma unroll
        for (uint e = 0u; e < 2u; e++) {
            total[e] += simd_shuffle_xor(total[e], ushort(2));
            total[e] += simd_shuffle_xor(total[e], ushort(4));
            total[e] += simd_shuffle_xor(total[e], ushort(16));
        }
        const float total_one = simd_shuffle(total[0], ushort(across));
        const float total_other = simd_shuffle(total[1], ushort(across));
        const float divisor = is_second ? total_other : total_one;
        const uint row = (simdgroup_id * 8u + line) / {{ heads_each }}u;
        const uint head = first_head + (simdgroup_id * 8u + line) % {{ heads_each }}u;
        if (row >= begin && row < end) {
{% if gates %}
            const uint gate = (first + row) * {{ gates.pitch }}u + {{ gates.first }}u + head * {{ width }}u;
{% endif %}
            device float* target = heads + ((first + row) * {{ query_heads }}u + head) * {{ width }}u;
            #pragma unroll
            for (uint i = 0u; i < {{ packets }}u; i++) {
                const uint channel = (4u * i + pair / 2u) * {{ per_packet }}u;
{% if guarded %}
                if (channel >= {{ width }}u) {
                    continue;
                }
{% endif %}
                #pragma unroll
                for (uint j = 0u; j < {{ pairs }}u; j++) {
                    const uint c = channel + {{ one }};
                    const uint m = i * {{ pairs }}u + j;
                    float2 mean = float2(sums[m].thread_elements()[0], sums[m].thread_elements()[1]) / divisor;
{% set apart = 2 if quantized else 1 %}
{% if gates %}
                    mean.x *= sigmoid(gates[gate + c]);
                    mean.y *= sigmoid(gates[gate + c + {{ apart }}u]);
{% endif %}
{% if quantized %}
                    target[c] = mean.x;
                    target[c + 2u] = mean.y;
{% else %}
                    *(device float2*)(target + c) = mean;
{% endif %}
                }
            }
        }
    }
{% if has_tensors %}
#endif
{% endif %}
}
