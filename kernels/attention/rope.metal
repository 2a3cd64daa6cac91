// Applies RoPE to every head of each row; heads: {{ heads }}. A thread processes one pair of a head's
// {{ width }} channels.

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
{% if long %}
    uint context;
{% endif %}
};

// grid: ceil({{ row_pairs }} / {{ threads }}), rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* x [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* y [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]]) {
    const uint pair = group.x * {{ threads }}u + thread_id;
{% if row_pairs % threads != 0 %}
    if (pair >= {{ row_pairs }}u) {
        return;
    }
{% endif %}
{% if dynamic_ntk %}
    // For contexts longer than {{ long }} positions pair k rotates at e^(slope * k) times its frequency.
    const float stretch = {{ dynamic_ntk.factor }} * (float(args.context) / {{ dynamic_ntk.original_context }}) - {{ dynamic_ntk.factor_minus_1 }};
    const float slope = args.context > {{ long }}u ? -precise::log(stretch) / {{ dynamic_ntk.last_pair }} : 0.0f;
{% elif long %}
    // Offset of the frequencies for this context length.
    const uint table_offset = args.context > {{ long }}u ? {{ pairs }}u : 0u;
{% endif %}
    const uint k = pair % {{ half }}u;
    const uint head = (group.y * {{ heads }}u + pair / {{ half }}u) * {{ width }}u;
    const uint one = {{ one }};
    const uint other = {{ other }};
    float2 channels = float2(x[head + one], x[head + other]);
{% if pairs < half %}
    if (k < {{ pairs }}u) {
        channels = rope(channels, float(positions[group.y]) * {{ frequency }}, {{ magnitude }});
    }
{% else %}
    channels = rope(channels, float(positions[group.y]) * {{ frequency }}, {{ magnitude }});
{% endif %}
    y[head + one] = channels.x;
    y[head + other] = channels.y;
}
