{% macro load_block() %}
        #pragma unroll
        for (uint u = 0u; u < {{ loads }}u; u++) {
            device const {{ element }}* cached_line = cached + ulong(min(start + u, end - 1u)) * {{ kv_stride }}ul;
{% for c in range(chunks) %}
            lines[u][{{ c }}] = {{ load }}(cached_line, {{ 128 * c ~ "u + " if c > 0 else "" }}channel{{ bound }});
{% endfor %}
        }
{% endmacro %}
// MLA attention in absorbed form: softmax({{ scale }} * (q c + r k)) c. All {{ heads }} heads share the
// latents c of {{ width }} channels and the RoPE keys k of {{ rope_width }}; a cache line contains both.
//
// A threadgroup processes one KV split and {{ group }} heads; each of its simdgroups processes
// {{ heads_each }} of them. A line is loaded once, and is used as key and then as value of these heads. No
// barrier is needed. The softmax is online: sums are rescaled whenever the maximum grows.
{% if prologue %}
//
// Simdgroups first apply RoPE to the queries of their heads. Threadgroups with the last split also prepare
// the row's own line and start with its score; one of them appends it to the cache, so that no threadgroup
// reads what is written here. With several rows of one sequence, a kernel before this one appends all lines.

// RoPE frequencies in radians per position, for each pair of channels.
{% if long and not dynamic_ntk %}
// They are followed by those for contexts longer than {{ long }} positions.
{% endif %}
constant float {{ name }}_frequencies[{{ table_size }}] = {
{% for line in table %}
    {{ line }},
{% endfor %}
};

{% endif %}
struct {{ args }} {
    uint rows;
    uint context;
    uint splits;
    uint split_positions;
{% if prologue %}
    uint appends;  // 0 if the lines of all rows are in the cache
{% endif %}
};

// grid: splits, {{ groups }}, rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* q [[buffer({{ slot() }})]],
{% if prologue %}
    device const float* queries [[buffer({{ slot() }})]],
    device const float* latent [[buffer({{ slot() }})]],
    device const float* key [[buffer({{ slot() }})]],
    device const float* gain [[buffer({{ slot() }})]],
    device {{ element }}* latents [[buffer({{ slot() }})]],
{% else %}
    device const float* q_rope [[buffer({{ slot() }})]],
    device const {{ element }}* latents [[buffer({{ slot() }})]],
{% endif %}
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* partials [[buffer({{ slot() }})]],
    device float* heads [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint3 group [[threadgroup_position_in_grid]],
{% if prologue %}
    uint thread_id [[thread_index_in_threadgroup]],
{% endif %}
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
{% if prologue %}
    threadgroup float q_rope[{{ group * rope_width }}];  // RoPE queries of all heads
    threadgroup float line[{{ padded }}];  // the row's latent and RoPE key, then zeros
{% if simdgroups > 1 %}
    threadgroup float partial_squares[{{ simdgroups }}];  // partial sums of squares, by simdgroup
{% endif %}
{% endif %}
    const uint split = group.x;
    const uint row = group.z;
    const uint first = group.y * {{ group }}u + simdgroup_id * {{ heads_each }}u;

    // This KV split of the row's positions; it may be empty.
    const uint position = positions[row];
    // The number of splits depends on the row's position only: other rows of the pass may have more. Further
    // splits are empty.
    const uint own_splits = min(args.splits, position / args.split_positions + 1u);
    const uint begin = (position + 1u) * split / own_splits;
{% if prologue %}
    const bool newest = split + 1u == own_splits;
    const uint end = newest ? position : (position + 1u) * min(split + 1u, own_splits) / own_splits;
{% else %}
    const uint end = (position + 1u) * min(split + 1u, own_splits) / own_splits;
{% endif %}
    const ulong of_slot = ulong(slots[row]) * ulong(args.context) * {{ kv_stride }}ul;
    device const {{ element }}* cached = latents + of_slot;

    // This lane's channels: 4 of every 128. The first lines are in flight while queries are prepared;
    // positions past the last repeat it.
    const uint channel = lane * 4u;
    {{ element }}4 lines[{{ loads }}][{{ chunks }}];
    uint start = begin;
    bool more = start < end;
    if (more) {
{{ load_block() }}    }

{% if prologue %}
{% if dynamic_ntk %}
    // For contexts longer than {{ long }} positions pair k rotates at e^(slope * k) times its frequency.
    const float stretch = {{ dynamic_ntk.factor }} * (float(args.context) / {{ dynamic_ntk.original_context }}) - {{ dynamic_ntk.factor_minus_1 }};
    const float slope = args.context > {{ long }}u ? -precise::log(stretch) / {{ dynamic_ntk.last_pair }} : 0.0f;
{% elif long %}
    // Offset of the frequencies for this context length.
    const uint table_offset = args.context > {{ long }}u ? {{ pairs }}u : 0u;
{% endif %}
    #pragma unroll
    for (uint h = 0u; h < {{ heads_each }}u; h++) {
        device const float* query = queries + row * {{ queries_pitch }}u + {{ q_rope_first }}u + {{ "min(first + h, " ~ (heads - 1) ~ "u)" if idle_heads else "(first + h)" }} * {{ rope_width }}u;
        threadgroup float* target = q_rope + (simdgroup_id * {{ heads_each }}u + h) * {{ rope_width }}u;
        for (uint k = lane; k < {{ half }}u; k += 32u) {
            const uint one = {{ one }};
            const uint other = {{ other }};
            float2 channels = float2(query[one], query[other]);
{% if pairs < half %}
            if (k < {{ pairs }}u) {
                channels = rope(channels, float(position) * {{ frequency }}, {{ magnitude }});
            }
{% else %}
            channels = rope(channels, float(position) * {{ frequency }}, {{ magnitude }});
{% endif %}
            target[one] = channels.x;
            target[other] = channels.y;
        }
    }
    if (newest) {
{% filter indent(4, first=true) %}
{% include "mla/parts/own_row" %}
{% endfilter %}

{% if padded != kv_stride %}
        for (uint c = {{ kv_stride }}u + thread_id; c < {{ padded }}u; c += {{ threads }}u) {
            line[c] = 0.0f;
        }
{% endif %}
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (newest && group.y == 0u && args.appends != 0u) {
        for (uint c = thread_id; c < {{ kv_stride }}u; c += {{ threads }}u) {
            latents[of_slot + ulong(position) * {{ kv_stride }}ul + ulong(c)] = {{ element }}(line[c]);
        }
    }

{% endif %}
    // Both parts of the queries in the layout of lines, with zeros past the last channel.
    float4 query[{{ heads_each }}][{{ chunks }}];
    float maximum[{{ heads_each }}];
    float total[{{ heads_each }}];
    float4 sums[{{ heads_each }}][{{ value_chunks }}];
    #pragma unroll
    for (uint h = 0u; h < {{ heads_each }}u; h++) {
        const uint head = row * {{ heads }}u + {{ "min(first + h, " ~ (heads - 1) ~ "u)" if idle_heads else "first + h" }};
        device const float* plain = q + head * {{ width }}u;
{% if prologue %}
        threadgroup const float* head_rope = q_rope + (simdgroup_id * {{ heads_each }}u + h) * {{ rope_width }}u;
{% else %}
        device const float* head_rope = q_rope + head * {{ rope_width }}u;
{% endif %}
        #pragma unroll
        for (uint c = 0u; c < {{ chunks }}u; c++) {
            #pragma unroll
            for (uint i = 0u; i < 4u; i++) {
                const uint at = 128u * c + channel + i;
                float value = 0.0f;
                if (at < {{ width }}u) {
                    value = plain[at];
                } else if (at < {{ kv_stride }}u) {
                    value = head_rope[at - {{ width }}u];
                }
                query[h][c][i] = {{ scale }} * value;
            }
        }
        maximum[h] = -1.0e38f;
        total[h] = 0.0f;
        #pragma unroll
        for (uint c = 0u; c < {{ value_chunks }}u; c++) {
            sums[h][c] = float4(0.0f);
        }
    }
{% if prologue %}

    // The row's own position.
    if (newest) {
        #pragma unroll
        for (uint h = 0u; h < {{ heads_each }}u; h++) {
            float score = 0.0f;
            #pragma unroll
            for (uint c = 0u; c < {{ chunks }}u; c++) {
                score += dot(query[h][c], *(threadgroup const float4*)(line + 128u * c + channel));
            }
            maximum[h] = simd_sum(score);
            total[h] = 1.0f;
            #pragma unroll
            for (uint c = 0u; c < {{ value_chunks }}u; c++) {
                sums[h][c] = *(threadgroup const float4*)(line + 128u * c + channel);
            }
        }
    }
{% endif %}

    while (more) {
        #pragma unroll
        for (uint h = 0u; h < {{ heads_each }}u; h++) {
            float scores[{{ loads }}];
            float highest = maximum[h];
            #pragma unroll
            for (uint u = 0u; u < {{ loads }}u; u++) {
                float score = 0.0f;
                #pragma unroll
                for (uint c = 0u; c < {{ chunks }}u; c++) {
                    score += dot(query[h][c], float4(lines[u][c]));
                }
                score = simd_sum(score);
                scores[u] = start + u < end ? score : -1.0e38f;
                highest = max(highest, scores[u]);
            }

            // Sums of latents with softmax weights.
            const float rescale = exp(maximum[h] - highest);
            maximum[h] = highest;
            total[h] *= rescale;
            #pragma unroll
            for (uint c = 0u; c < {{ value_chunks }}u; c++) {
                sums[h][c] *= rescale;
            }
            #pragma unroll
            for (uint u = 0u; u < {{ loads }}u; u++) {
                const float weight = exp(scores[u] - highest);
                total[h] += weight;
                #pragma unroll
                for (uint c = 0u; c < {{ value_chunks }}u; c++) {
                    sums[h][c] += weight * float4(lines[u][c]);
                }
            }
        }

        start += {{ loads }}u;
        more = start < end;
        if (more) {
{{ load_block() | indent(4, true) }}
        }
    }

    // With one split write the result; otherwise write sums, maximum and denominator. All lanes have the last
    // two.
    const bool alone = args.splits == 1u;
    #pragma unroll
    for (uint h = 0u; h < {{ heads_each }}u; h++) {
{% if idle_heads %}
        if (first + h >= {{ heads }}u) {
            continue;
        }
{% endif %}
        const uint head = row * {{ heads }}u + first + h;
        device float* target = alone ? heads + head * {{ width }}u : partials + (head * args.splits + split) * {{ width + 2 }}u;
        const float divisor = alone ? total[h] : 1.0f;
        #pragma unroll
        for (uint c = 0u; c < {{ value_chunks }}u; c++) {
            #pragma unroll
            for (uint i = 0u; i < 4u; i++) {
                const uint at = 128u * c + channel + i;
{% if width % 128 != 0 %}
                if (at < {{ width }}u) {
                    target[at] = sums[h][c][i] / divisor;
                }
{% else %}
                target[at] = sums[h][c][i] / divisor;
{% endif %}
            }
        }
        if (!alone && lane == 0u) {
            target[{{ width }}] = maximum[h];
            target[{{ width + 1 }}] = total[h];
        }
    }
}
