// Rotates queries (heads: {{ query_heads }}) and keys (heads: {{ key_heads }}) by the row's position. Queries go to q; keys and values go to the
// cache, to the row's slot and position. A thread takes two of a head's {{ width }} channels, those that turn together.

// Radians a position, for each pair of channels that turns.
constant float {{ name }}_frequencies[{{ pairs }}] = {
{% for line in table %}
    {{ line }},
{% endfor %}
};

struct {{ args }} {
    uint rows;
    uint context;
};

// grid: ceil({{ row_pairs }} / {{ threads }}), rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* qkv [[buffer({{ slot() }})]],
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* q [[buffer({{ slot() }})]],
    device {{ element }}* keys [[buffer({{ slot() }})]],
    device {{ element }}* values [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]]) {
    const uint row = group.y;
    const uint pair = group.x * {{ threads }}u + thread_id;
{% if row_pairs % threads != 0 %}
    if (pair >= {{ row_pairs }}u) {
        return;
    }
{% endif %}

    // Heads of a row: {{ query_heads }} of queries, {{ key_heads }} of keys, {{ key_heads }} of values.
    const uint head = pair / {{ half }}u;
    const uint k = pair % {{ half }}u;
    const uint position = positions[row];
    device const float* source = qkv + row * {{ row_width }}u + head * {{ width }}u;
{% if pairs < half %}
    const bool turns = head < {{ query_heads + key_heads }}u && k < {{ pairs }}u;
{% else %}
    const bool turns = head < {{ query_heads + key_heads }}u;
{% endif %}
{% if pairing == "half" %}
    const uint one = turns ? k : 2u * k;
    const uint other = turns ? k + {{ pairs }}u : 2u * k + 1u;
{% else %}
    const uint one = 2u * k;
    const uint other = 2u * k + 1u;
{% endif %}

    // Turn.
    float a = source[one];
    float b = source[other];
    if (turns) {
        const float angle = float(position) * {{ name }}_frequencies[k];
        const float cosine = precise::cos(angle){% if magnitude != 1 %} * {{ magnitude }}{% endif %};
        const float sine = precise::sin(angle){% if magnitude != 1 %} * {{ magnitude }}{% endif %};
        const float turned = a * cosine - b * sine;
        b = b * cosine + a * sine;
        a = turned;
    }

    // Store.
    if (head < {{ query_heads }}u) {
        device float* target = q + (row * {{ query_heads }}u + head) * {{ width }}u;
        target[one] = a;
        target[other] = b;
    } else {
        const bool is_key = head < {{ query_heads + key_heads }}u;
        const ulong key_head = ulong(head - (is_key ? {{ query_heads }}u : {{ query_heads + key_heads }}u));
        const ulong place = (ulong(slots[row]) * {{ key_heads }}ul + key_head) * ulong(args.context) + ulong(position);
        device {{ element }}* target = (is_key ? keys : values) + place * {{ width }}ul;
        target[one] = {{ element }}(a);
        target[other] = {{ element }}(b);
    }
}
