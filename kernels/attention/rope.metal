// Turns every head of each row by the row's position; heads: {{ heads }}. A thread takes two of a head's {{ width }} channels, those that
// turn together.

// Radians a position, for each pair of channels that turns.
{% if long and not stretched %}
// After them those of contexts of more than {{ long }} positions.
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
{% if stretched %}
    // A context of more than {{ long }} positions slows pair k by e^(slope * k).
    const float stretch = {{ stretched.factor }} * (float(args.context) / {{ stretched.beyond }}) - {{ stretched.less }};
    const float slope = args.context > {{ long }}u ? -precise::log(stretch) / {{ stretched.slower }} : 0.0f;
{% elif long %}
    // Where the context's own frequencies begin.
    const uint own = args.context > {{ long }}u ? {{ pairs }}u : 0u;
{% endif %}
    const uint k = pair % {{ half }}u;
    const uint head = (group.y * {{ heads }}u + pair / {{ half }}u) * {{ width }}u;
    const uint one = {{ one }};
    const uint other = {{ other }};
    float2 channels = float2(x[head + one], x[head + other]);
{% if pairs < half %}
    if (k < {{ pairs }}u) {
        channels = turn(channels, float(positions[group.y]) * {{ frequency }}, {{ magnitude }});
    }
{% else %}
    channels = turn(channels, float(positions[group.y]) * {{ frequency }}, {{ magnitude }});
{% endif %}
    y[head + one] = channels.x;
    y[head + other] = channels.y;
}
