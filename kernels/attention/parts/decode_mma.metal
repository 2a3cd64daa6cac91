{# Attention over a KV split with MMA: eight heads by eight positions of keys, and sixteen of values. #}
{% set strips = width // 32 %}
{% set parts = width // 64 %}
{% set place = "min(first + own_head, " ~ (group - 1) ~ "u)" if head_parts > 1 else "min(own_head, " ~ (group - 1) ~ "u)" if group < 8 else "own_head" %}
{% macro load_keys() %}
#pragma unroll
for (uint b = 0u; b < 2u; b++) {
    const uint p = min(start + b * 8u + own_head, end - 1u);
    device const half* of_position = cached_keys + ulong(p{{ modulo }}) * {{ width }}ul;
    #pragma unroll
    for (uint s = 0u; s < {{ strips }}u; s++) {
        {{ load }}(of_position, s * 32u + quarter * 8u, key + (b * {{ strips }}u + s) * 2u);
    }
}
{% endmacro %}
{% macro load_values() %}
#pragma unroll
for (uint v = 0u; v < 4u; v++) {
    const uint p = min(start + v / 2u * 8u + quarter * 2u + v % 2u, end - 1u);
    device const half* of_position = cached_values + ulong(p{{ modulo }}) * {{ width }}ul;
    #pragma unroll
    for (uint part = 0u; part < {{ parts }}u; part++) {
        {{ load }}(of_position, part * 64u + own_head * 8u, value + (part * 4u + v) * 2u);
    }
}
{% endmacro %}
{# Writes the partial results of a lane's head. #}
{% macro leave_sums() %}
threadgroup float* partial = shared + (simdgroup_id * {{ joined }}u + own_head{{ " - done" if joined < heads_each else "" }}) * {{ sums_pitch }}u;
#pragma unroll
for (uint i = 0u; i < {{ parts * 8 }}u; i++) {
    const uint channel = i / 8u * 64u + quarter * 16u + i % 8u;
    partial[channel] = sums[i].x + sums[i].z;
    partial[channel + 8u] = sums[i].y + sums[i].w;
}
if (quarter == 0u) {
    partial[{{ width }}] = maximum;
    partial[{{ width + 1 }}] = total;
}
{% endmacro %}
    // This lane's head (also its position) out of eight, and its quarter of the channels or positions; this
    // simdgroup's positions{{ " and heads" if head_parts > 1 else "" }}.
    const uint own_head = (lane >> 2u & 4u) | (lane >> 1u & 3u);
    const uint quarter = (lane >> 2u & 2u) | (lane & 1u);
{% if head_parts > 1 %}
    const uint first = simdgroup_id % {{ head_parts }}u * 8u;
    const uint own_part = simdgroup_id / {{ head_parts }}u;
{% else %}
    const uint own_part = simdgroup_id;
{% endif %}

    // The first keys and values are in flight while queries are prepared. Positions past the last repeat it.
    half4 key[{{ strips * 4 }}];
    half4 value[{{ parts * 8 }}];
    uint start = begin + own_part * 16u;
    bool more = start < end;
{% if appends %}
    // Then the kernel before this one appends to the cache.
    wait_for_others_if(args.appends == 0u);
{% endif %}
    if (more) {
        {{ load_keys()|indent(8) }}
        {{ load_values()|indent(8) }}
    }

{% include "attention/parts/prepare" %}
    // Scaled queries, split into f16 values and f16 remainders. Heads past the last repeat it.
    threadgroup const float* query = shared + {{ place }} * {{ pitch }}u + quarter * 8u;
    half4 most[{{ strips * 2 }}];
    half4 rest[{{ strips * 2 }}];
    #pragma unroll
    for (uint i = 0u; i < {{ strips * 2 }}u; i++) {
        const float4 scaled = {{ scale if softcap else scale_base_2 }} * *(threadgroup const float4*)(query + i / 2u * 32u + i % 2u * 4u);
        most[i] = half4(scaled);
        rest[i] = half4(scaled - float4(most[i]));
    }

    float maximum = -1.0e38f;
    float total = 0.0f;
    float4 sums[{{ parts * 8 }}];
    #pragma unroll
    for (uint i = 0u; i < {{ parts * 8 }}u; i++) {
        sums[i] = float4(0.0f);
    }
{% if sinks %}

    // A sink is a score without a value. Totals are summed over the lanes of a head at the end, so only one
    // lane has it.
    if (split == 0u && own_part == 0u) {
        maximum = {{ base_2 }} * sinks[group.y * {{ group }}u + {{ place }}];
        total = quarter == 0u ? 1.0f : 0.0f;
    }
{% endif %}
{% if appends %}

    // The row's own position: each lane of a head has a quarter of its channels.
    if (newest && own_part == 0u) {
        threadgroup const float* quarter_of_heads = shared + quarter * {{ width // 4 }}u;
        threadgroup const float4* own_query = (threadgroup const float4*)(quarter_of_heads + {{ place }} * {{ pitch }}u);
        threadgroup const float4* own_key = (threadgroup const float4*)(quarter_of_heads + {{ group * pitch }}u);
        float score = 0.0f;
        #pragma unroll
        for (uint i = 0u; i < {{ width // 16 }}u; i++) {
            score += dot(own_query[i], own_key[i]);
        }
        score += simd_shuffle_xor(score, ushort(1));
        score += simd_shuffle_xor(score, ushort(8));
{% if softcap %}
        score = {{ base_2 }} * softcap(score * {{ scale }}, {{ softcap }});
{% else %}
        score *= {{ scale_base_2 }};
{% endif %}
{% if sinks %}
        const float highest = max(maximum, score);
        const float weight = exp2(score - highest);
        total = total * exp2(maximum - highest) + (quarter == 0u ? weight : 0.0f);
        maximum = highest;
{% else %}
        const float weight = 1.0f;
        total = quarter == 0u ? weight : 0.0f;
        maximum = score;
{% endif %}
        threadgroup const float* own_value = shared + {{ (group + 1) * pitch }}u + quarter * 16u;
        #pragma unroll
        for (uint i = 0u; i < {{ parts * 8 }}u; i++) {
            sums[i].xy = weight * float2(own_value[i / 8u * 64u + i % 8u], own_value[i / 8u * 64u + i % 8u + 8u]);
        }
    }
{% endif %}

    while (more) {
        // Two accumulators each shorten the dependency chain.
        float4 products[4] = {float4(0.0f), float4(0.0f), float4(0.0f), float4(0.0f)};
        #pragma unroll
        for (uint s = 0u; s < {{ strips }}u; s++) {
            #pragma unroll
            for (uint b = 0u; b < 2u; b++) {
                thread const half4* keys_of_strip = key + (b * {{ strips }}u + s) * 2u;
                add_scores(products[b * 2u + s % 2u], keys_of_strip, most + s * 2u, rest + s * 2u, own_head, quarter);
            }
        }

        // Load the next block in place of the consumed one.
        const uint now = start;
        start += {{ position_parts * 16 }}u;
        more = start < end;
        if (more) {
            {{ load_keys()|indent(12) }}
        }

        // Scores of this lane's four positions, with weight 0 past the last, and softmax weights.
        const float4 first_eight = products[0] + products[1];
        const float4 last_eight = products[2] + products[3];
        float4 scores = float4(first_eight.xy + first_eight.zw, last_eight.xy + last_eight.zw);
{% if softcap %}
        #pragma unroll
        for (uint p = 0u; p < 4u; p++) {
            scores[p] = {{ base_2 }} * softcap(scores[p], {{ softcap }});
        }
{% endif %}
        float highest = maximum;
        #pragma unroll
        for (uint p = 0u; p < 4u; p++) {
            scores[p] = now + p / 2u * 8u + quarter * 2u + p % 2u < end ? scores[p] : -1.0e38f;
            highest = max(highest, scores[p]);
        }
        highest = max(highest, simd_shuffle_xor(highest, ushort(1)));
        highest = max(highest, simd_shuffle_xor(highest, ushort(8)));
        const float rescale = exp2(maximum - highest);
        maximum = highest;
        float4 weight;
        #pragma unroll
        for (uint p = 0u; p < 4u; p++) {
            weight[p] = exp2(scores[p] - highest);
        }
        total = total * rescale + (weight.x + weight.y) + (weight.z + weight.w);
        const half4 most_of_weight = half4(weight);
        const half4 rest_of_weight = half4(weight - float4(most_of_weight));
        #pragma unroll
        for (uint i = 0u; i < {{ parts * 8 }}u; i++) {
            sums[i] *= rescale;
        }
        #pragma unroll
        for (uint part = 0u; part < {{ parts }}u; part++) {
            add_weighted(sums + part * 8u, value + part * 8u, most_of_weight, rest_of_weight, own_head, quarter);
        }
        if (more) {
            {{ load_values()|indent(12) }}
        }
    }

    // Combine the lanes of a head with different positions, then the simdgroups.
    total += simd_shuffle_xor(total, ushort(1));
    total += simd_shuffle_xor(total, ushort(8));
    const bool alone = args.splits == 1u;
    #pragma unroll
    for (uint done = 0u; done < {{ heads_each }}u; done += {{ joined }}u) {
        // The memory's previous content (queries or other heads) has been read.
        threadgroup_barrier(mem_flags::mem_threadgroup);
{% if joined < 8 %}
        if (own_head{{ " - done" if joined < heads_each else "" }} < {{ joined }}u) {
            {{ leave_sums()|indent(12) }}
        }
{% else %}
        {{ leave_sums()|indent(8) }}
{% endif %}
        threadgroup_barrier(mem_flags::mem_threadgroup);

{% include "attention/parts/write_result" %}
    }
