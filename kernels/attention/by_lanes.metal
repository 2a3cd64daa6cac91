{# What a share gives, where lanes have channels of a position and find its scores together. #}
{% set vector = "float4" if quantised else element ~ "4" %}
{% set past = lanes * 8 > pitch %}
{% set place = "place" if past else "channel" %}
{% set head = "min(first + h, " ~ (group - 1) ~ "u)" if idle_heads else "(first + h)" if head_parts > 1 else "h" %}
{% macro load_block() %}
        #pragma unroll
        for (uint u = 0u; u < {{ loads }}u; u++) {
            const uint p = min(start + {{ at_once }}u * u + offset, end - 1u);
{% if quantised %}
            device const uchar* record = cached_keys + ulong(p{{ around }}) * {{ record }}ul;
            key[u][0] = {{ load }}(record, channel, {{ width }}u);
            key[u][1] = {{ load }}(record, channel + 4u, {{ width }}u);
{% else %}
            {{ load }}(cached_keys + ulong(p{{ around }}) * {{ width }}ul, channel{{ bound }}, key[u]);
{% endif %}
        }
        #pragma unroll
        for (uint u = 0u; u < {{ loads }}u; u++) {
            const uint p = min(start + {{ at_once }}u * u + offset, end - 1u);
{% if quantised %}
            device const uchar* record = cached_values + ulong(p{{ around }}) * {{ record }}ul;
            value[u][0] = {{ load }}(record, channel, {{ width }}u);
            value[u][1] = {{ load }}(record, channel + 4u, {{ width }}u);
{% else %}
            {{ load }}(cached_values + ulong(p{{ around }}) * {{ width }}ul, channel{{ bound }}, value[u]);
{% endif %}
        }
{% endmacro %}
    // This lane's 8 channels, and which of {{ at_once }} neighbouring positions it has; this simdgroup's positions{{ " and heads" if head_parts > 1 else "" }}.
    const uint channel = lane % {{ lanes }}u * 8u;
    const uint offset = lane / {{ lanes }}u;
{% if head_parts > 1 %}
    const uint first = simdgroup_id % {{ head_parts }}u * {{ heads_each }}u;
    const uint part = simdgroup_id / {{ head_parts }}u;
{% else %}
    const uint part = simdgroup_id;
{% endif %}

    // The first keys and values are under way while queries are prepared. Positions past the last repeat it.
    {{ vector }} key[{{ loads }}][2];
    {{ vector }} value[{{ loads }}][2];
    uint start = begin + part * {{ block }}u;
    bool more = start < end;
    if (more) {
{{ load_block() }}    }

{% include "attention/prepare" %}
{% if past and staged %}
    // Of a query a lane reads channels that exist; what they meet is 0.
    const uint place = min(channel, {{ pitch - 8 }}u);
{% endif %}
    float maximum[{{ heads_each }}];
    float total[{{ heads_each }}];
    float4 sums[{{ heads_each }}][2];
    #pragma unroll
    for (uint h = 0u; h < {{ heads_each }}u; h++) {
        maximum[h] = -1.0e38f;
        total[h] = 0.0f;
        sums[h][0] = float4(0.0f);
        sums[h][1] = float4(0.0f);
    }
{% if sinks %}

    // A sink is a score without a value. Totals are added over {{ at_once }} lanes in the end, so only one of them has it.
    if (split == 0u && part == 0u) {
        #pragma unroll
        for (uint h = 0u; h < {{ heads_each }}u; h++) {
            maximum[h] = {{ base_2 }} * sinks[group.y * {{ group }}u + {{ head }}];
            total[h] = offset == 0u ? 1.0f : 0.0f;
        }
    }
{% endif %}
{% if appends %}

    // The row's own position.
    if (newest && part == 0u) {
        threadgroup const float4* key = (threadgroup const float4*)(shared + {{ group * pitch }}u + {{ place }});
        threadgroup const float4* value = (threadgroup const float4*)(shared + {{ (group + 1) * pitch }}u + {{ place }});
        #pragma unroll
        for (uint h = 0u; h < {{ heads_each }}u; h++) {
            threadgroup const float4* query = (threadgroup const float4*)(shared + {{ head }} * {{ pitch }}u + {{ place }});
            float score = dot(query[0], key[0]) + dot(query[1], key[1]);
{% if lanes * 8 != pitch %}
            score = channel < {{ pitch }}u ? score : 0.0f;
{% endif %}
{% for distance in within %}
            score += simd_shuffle_xor(score, ushort({{ distance }}));
{% endfor %}
{% if softcap %}
            score = {{ base_2 }} * softcap(score * {{ scale }}, {{ softcap }});
{% else %}
            score *= {{ scale_base_2 }};
{% endif %}
{% if sinks %}
            const float highest = max(maximum[h], score);
            const float weight = offset == 0u ? exp2(score - highest) : 0.0f;
            total[h] = total[h] * exp2(maximum[h] - highest) + weight;
            maximum[h] = highest;
{% else %}
            const float weight = offset == 0u ? 1.0f : 0.0f;
            total[h] = weight;
            maximum[h] = score;
{% endif %}
            sums[h][0] = weight * value[0];
            sums[h][1] = weight * value[1];
        }
    }
{% endif %}

    while (more) {
        #pragma unroll
        for (uint h = 0u; h < {{ heads_each }}u; h++) {
            // Scores: a lane's channels, then those of all that share the position.
{% if staged %}
            threadgroup const float4* query = (threadgroup const float4*)(shared + {{ head }} * {{ pitch }}u + {{ place }});
{% else %}
            float4 query[2];
            {{ query_load }}(q + (first_head + {{ head }}) * {{ width }}u, channel{{ bound }}, query);
{% endif %}
            float scores[{{ loads }}];
            float highest = maximum[h];
            #pragma unroll
            for (uint u = 0u; u < {{ loads }}u; u++) {
                float score = dot(float4(key[u][0]), query[0]) + dot(float4(key[u][1]), query[1]);
{% for distance in within %}
                score += simd_shuffle_xor(score, ushort({{ distance }}));
{% endfor %}
{% if softcap %}
                score = {{ base_2 }} * softcap(score * {{ scale }}, {{ softcap }});
{% else %}
                score *= {{ scale_base_2 }};
{% endif %}
                scores[u] = start + {{ at_once }}u * u + offset < end ? score : -1.0e38f;
                highest = max(highest, scores[u]);
            }
{% for distance in across %}
            highest = max(highest, simd_shuffle_xor(highest, ushort({{ distance }})));
{% endfor %}

            // Sums of values, weighted by how far a score is below the maximum.
            const float keep = exp2(maximum[h] - highest);
            maximum[h] = highest;
            total[h] *= keep;
            sums[h][0] *= keep;
            sums[h][1] *= keep;
            #pragma unroll
            for (uint u = 0u; u < {{ loads }}u; u++) {
                const float weight = exp2(scores[u] - highest);
                total[h] += weight;
                sums[h][0] += weight * float4(value[u][0]);
                sums[h][1] += weight * float4(value[u][1]);
            }
        }

        start += {{ position_parts * block }}u;
        more = start < end;
        if (more) {
{{ load_block() | indent(4, true) }}
        }
    }

    // Join: the lanes that have other positions, then the simdgroups that do.
    const bool alone = args.splits == 1u;
    #pragma unroll
    for (uint done = 0u; done < {{ heads_each }}u; done += {{ joined }}u) {
        // What is in the way here has been read: queries, or other heads.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        #pragma unroll
        for (uint j = 0u; j < {{ joined }}u; j++) {
            const uint h = done + j;
{% for distance in across %}
            total[h] += simd_shuffle_xor(total[h], ushort({{ distance }}));
            #pragma unroll
            for (uint c = 0u; c < 4u; c++) {
                sums[h][0][c] += simd_shuffle_xor(sums[h][0][c], ushort({{ distance }}));
                sums[h][1][c] += simd_shuffle_xor(sums[h][1][c], ushort({{ distance }}));
            }
{% endfor %}
            threadgroup float* own = shared + (simdgroup_id * {{ joined }}u + j) * {{ sums_pitch }}u;
{% if pitch < 256 %}
            if (lane < {{ pitch // 8 }}u) {
                *(threadgroup float4*)(own + channel) = sums[h][0];
                *(threadgroup float4*)(own + channel + 4u) = sums[h][1];
            }
{% else %}
            *(threadgroup float4*)(own + channel) = sums[h][0];
            *(threadgroup float4*)(own + channel + 4u) = sums[h][1];
{% endif %}
            if (lane == 0u) {
                own[{{ pitch }}] = maximum[h];
                own[{{ pitch + 1 }}] = total[h];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

{% include "attention/finish" %}
    }
