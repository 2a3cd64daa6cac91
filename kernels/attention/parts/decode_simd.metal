{# Attention over a KV split with shuffles: lanes have channels of a position and sum its scores. #}
{% set vector = "float4" if quantized else element ~ "4" %}
{% set past = lanes * 8 > pitch %}
{% set place = "place" if past else "channel" %}
{% set head = "min(first + h, " ~ (group - 1) ~ "u)" if idle_heads else "(first + h)" if head_parts > 1 else "h" %}
{% set vectors = 2 * packets|length %}
{% macro at(further) %}{{ " + " ~ further ~ "u" if further else "" }}{% endmacro %}
{% macro load_block() %}
        #pragma unroll
        for (uint u = 0u; u < {{ loads }}u; u++) {
            const uint p = min(start + {{ at_once }}u * u + offset, end - 1u);
{% if quantized %}
            device const uchar* record = cached_keys + ulong(p{{ modulo }}) * {{ kv_stride }}ul;
{% for packet, further in packets %}
            key[u][{{ 2 * packet }}] = {{ load }}(record, channel{{ at(further) }}, {{ width }}u);
            key[u][{{ 2 * packet + 1 }}] = {{ load }}(record, channel{{ at(further + 4) }}, {{ width }}u);
{% endfor %}
{% else %}
{% for packet, further in packets %}
            {{ load }}(cached_keys + ulong(p{{ modulo }}) * {{ width }}ul, channel{{ at(further) }}{{ bound }}, key[u]{{ " + " ~ 2 * packet if packet else "" }});
{% endfor %}
{% endif %}
        }
        #pragma unroll
        for (uint u = 0u; u < {{ loads }}u; u++) {
            const uint p = min(start + {{ at_once }}u * u + offset, end - 1u);
{% if quantized %}
            device const uchar* record = cached_values + ulong(p{{ modulo }}) * {{ kv_stride }}ul;
{% for packet, further in packets %}
            value[u][{{ 2 * packet }}] = {{ load }}(record, channel{{ at(further) }}, {{ width }}u);
            value[u][{{ 2 * packet + 1 }}] = {{ load }}(record, channel{{ at(further + 4) }}, {{ width }}u);
{% endfor %}
{% else %}
{% for packet, further in packets %}
            {{ load }}(cached_values + ulong(p{{ modulo }}) * {{ width }}ul, channel{{ at(further) }}{{ bound }}, value[u]{{ " + " ~ 2 * packet if packet else "" }});
{% endfor %}
{% endif %}
        }
{% endmacro %}
{% if vectors > 2 %}
    // This lane's first 8 channels (it has every {{ lanes * 8 }}th group of 8), and its position out of
    // {{ at_once }} adjacent ones; this simdgroup's positions{{ " and heads" if head_parts > 1 else "" }}.
{% else %}
    // This lane's 8 channels, and its position out of {{ at_once }} adjacent ones; this simdgroup's
    // positions{{ " and heads" if head_parts > 1 else "" }}.
{% endif %}
    const uint channel = lane % {{ lanes }}u * 8u;
    const uint offset = lane / {{ lanes }}u;
{% if head_parts > 1 %}
    const uint first = simdgroup_id % {{ head_parts }}u * {{ heads_each }}u;
    const uint part = simdgroup_id / {{ head_parts }}u;
{% else %}
    const uint part = simdgroup_id;
{% endif %}

    // The first keys and values are in flight while queries are prepared. Positions past the last repeat it.
    {{ vector }} key[{{ loads }}][{{ vectors }}];
    {{ vector }} value[{{ loads }}][{{ vectors }}];
    uint start = begin + part * {{ block }}u;
    bool more = start < end;
{% if appends %}
    // Then the kernel before this one appends to the cache.
    wait_for_others_if(args.appends == 0u);
{% endif %}
    if (more) {
{{ load_block() }}    }

{% include "attention/parts/prepare" %}
{% if past and staged %}
    // Lanes past the last channel read an existing one of the query, which is multiplied by 0.
    const uint place = min(channel, {{ pitch - 8 }}u);
{% endif %}
    float maximum[{{ heads_each }}];
    float total[{{ heads_each }}];
    float4 sums[{{ heads_each }}][{{ vectors }}];
    #pragma unroll
    for (uint h = 0u; h < {{ heads_each }}u; h++) {
        maximum[h] = -1.0e38f;
        total[h] = 0.0f;
{% for v in range(vectors) %}
        sums[h][{{ v }}] = float4(0.0f);
{% endfor %}
    }
{% if sinks %}

    // A sink is a score without a value. Totals are summed over {{ at_once }} lanes at the end, so only one
    // lane has it.
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
            float score = {% for _, further in packets %}{{ " + " if further else "" }}dot(query[{{ further // 4 }}], key[{{ further // 4 }}]) + dot(query[{{ further // 4 + 1 }}], key[{{ further // 4 + 1 }}]){% endfor %};
{% if lanes * 8 > pitch %}
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
{% for packet, further in packets %}
            sums[h][{{ 2 * packet }}] = weight * value[{{ further // 4 }}];
            sums[h][{{ 2 * packet + 1 }}] = weight * value[{{ further // 4 + 1 }}];
{% endfor %}
        }
    }
{% endif %}

    while (more) {
        #pragma unroll
        for (uint h = 0u; h < {{ heads_each }}u; h++) {
            // Scores: over a lane's channels, then over all lanes of the position.
{% if staged %}
            threadgroup const float4* query = (threadgroup const float4*)(shared + {{ head }} * {{ pitch }}u + {{ place }});
{% else %}
            float4 query[{{ vectors }}];
{% for packet, further in packets %}
            {{ query_load }}(q + (first_head + {{ head }}) * {{ width }}u, channel{{ at(further) }}{{ bound }}, query{{ " + " ~ 2 * packet if packet else "" }});
{% endfor %}
{% endif %}
            float scores[{{ loads }}];
            float highest = maximum[h];
            #pragma unroll
            for (uint u = 0u; u < {{ loads }}u; u++) {
                float score = {% for packet, further in packets %}{% set of_query = further // 4 if staged else 2 * packet %}{{ " + " if packet else "" }}dot(float4(key[u][{{ 2 * packet }}]), query[{{ of_query }}]) + dot(float4(key[u][{{ 2 * packet + 1 }}]), query[{{ of_query + 1 }}]){% endfor %};
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

            // Sums of values with softmax weights.
            const float rescale = exp2(maximum[h] - highest);
            maximum[h] = highest;
            total[h] *= rescale;
{% for v in range(vectors) %}
            sums[h][{{ v }}] *= rescale;
{% endfor %}
            #pragma unroll
            for (uint u = 0u; u < {{ loads }}u; u++) {
                const float weight = exp2(scores[u] - highest);
                total[h] += weight;
{% for v in range(vectors) %}
                sums[h][{{ v }}] += weight * float4(value[u][{{ v }}]);
{% endfor %}
            }
        }

        start += {{ position_parts * block }}u;
        more = start < end;
        if (more) {
{{ load_block() | indent(4, true) }}
        }
    }

    // Combine the lanes with different positions, then the simdgroups.
    const bool alone = args.splits == 1u;
    #pragma unroll
    for (uint done = 0u; done < {{ heads_each }}u; done += {{ joined }}u) {
        // The memory's previous content (queries or other heads) has been read.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        #pragma unroll
        for (uint j = 0u; j < {{ joined }}u; j++) {
            const uint h = done + j;
{% for distance in across %}
            total[h] += simd_shuffle_xor(total[h], ushort({{ distance }}));
            #pragma unroll
            for (uint c = 0u; c < 4u; c++) {
{% for v in range(vectors) %}
                sums[h][{{ v }}][c] += simd_shuffle_xor(sums[h][{{ v }}][c], ushort({{ distance }}));
{% endfor %}
            }
{% endfor %}
            threadgroup float* partial = shared + (simdgroup_id * {{ joined }}u + j) * {{ sums_pitch }}u;
{% if pitch < 256 %}
            if (lane < {{ pitch // 8 }}u) {
                *(threadgroup float4*)(partial + channel) = sums[h][0];
                *(threadgroup float4*)(partial + channel + 4u) = sums[h][1];
            }
{% else %}
{% for packet, further in packets %}
            *(threadgroup float4*)(partial + channel{{ at(further) }}) = sums[h][{{ 2 * packet }}];
            *(threadgroup float4*)(partial + channel{{ at(further + 4) }}) = sums[h][{{ 2 * packet + 1 }}];
{% endfor %}
{% endif %}
            if (lane == 0u) {
                partial[{{ pitch }}] = maximum[h];
                partial[{{ pitch + 1 }}] = total[h];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

{% include "attention/parts/write_result" %}
    }
