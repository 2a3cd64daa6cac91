// Applies RoPE to the RoPE queries (heads: {{ heads }}). Normalizes the row's latent of {{ width }} channels,
// applies RoPE to its key of {{ rope_width }}, and appends both to the MLA cache at the row's slot and position.
// The first threadgroup of a row does the latter; in the others a thread processes one pair of channels of a
// query.

// RoPE frequencies in radians per position, for each pair of channels.
{% if long and not dynamic_ntk %}
// They are followed by those for contexts longer than {{ long }} positions.
{% endif %}
constant float {{ name }}_frequencies[{{ table_size }}] = {
{% for line in table %}
    {{ line }},
{% endfor %}
};

struct {{ args }} {
    uint rows;
    uint context;
};

// grid: ceil({{ row_pairs }} / {{ threads }}) + 1, rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* queries [[buffer({{ slot() }})]],
    device const float* latent [[buffer({{ slot() }})]],
    device const float* key [[buffer({{ slot() }})]],
    device const float* gain [[buffer({{ slot() }})]],
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* q_rope [[buffer({{ slot() }})]],
    device {{ element }}* latents [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float line[{{ kv_stride }}];  // the row's latent and RoPE key
{% if simdgroups > 1 %}
    threadgroup float partial_squares[{{ simdgroups }}];  // partial sums of squares, by simdgroup
{% endif %}
    const uint row = group.y;
    const uint position = positions[row];
{% if dynamic_ntk %}
    // For contexts longer than {{ long }} positions pair k rotates at e^(slope * k) times its frequency.
    const float stretch = {{ dynamic_ntk.factor }} * (float(args.context) / {{ dynamic_ntk.original_context }}) - {{ dynamic_ntk.factor_minus_1 }};
    const float slope = args.context > {{ long }}u ? -precise::log(stretch) / {{ dynamic_ntk.last_pair }} : 0.0f;
{% elif long %}
    // Offset of the frequencies for this context length.
    const uint table_offset = args.context > {{ long }}u ? {{ pairs }}u : 0u;
{% endif %}
    if (group.x == 0u) {
{% filter indent(4, first=true) %}
{% include "mla/parts/own_row" %}
{% endfilter %}

        threadgroup_barrier(mem_flags::mem_threadgroup);
        const ulong target = (ulong(slots[row]) * ulong(args.context) + ulong(position)) * {{ kv_stride }}ul;
        for (uint c = thread_id; c < {{ kv_stride }}u; c += {{ threads }}u) {
            latents[target + ulong(c)] = {{ element }}(line[c]);
        }
        return;
    }

    const uint pair = (group.x - 1u) * {{ threads }}u + thread_id;
{% if row_pairs % threads != 0 %}
    if (pair >= {{ row_pairs }}u) {
        return;
    }
{% endif %}
    const uint head = pair / {{ half }}u;
    const uint k = pair % {{ half }}u;
    const uint one = {{ one }};
    const uint other = {{ other }};
    device const float* query = queries + row * {{ queries_pitch }}u + {{ q_rope_first }}u + head * {{ rope_width }}u;
    float2 channels = float2(query[one], query[other]);
{% if pairs < half %}
    if (k < {{ pairs }}u) {
        channels = rope(channels, float(position) * {{ frequency }}, {{ magnitude }});
    }
{% else %}
    channels = rope(channels, float(position) * {{ frequency }}, {{ magnitude }});
{% endif %}
    device float* target = q_rope + (row * {{ heads }}u + head) * {{ rope_width }}u;
    target[one] = channels.x;
    target[other] = channels.y;
}
