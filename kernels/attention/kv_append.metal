{% set vector = element ~ step %}
{% set capacity = "args.capacity" if ring else "args.context" %}
{% set modulo = " % " ~ ring ~ "u" if ring else "" %}
{% if quantized %}
// Appends keys and values (heads: {{ key_heads }}) to the q8_0 KV cache at the row's slot and position:
// {{ width }} quantized values, followed by a scale for each 32. A thread processes one channel.
{% else %}
// Appends keys and values (heads: {{ key_heads }}) to the KV cache at the row's slot and position. A thread
// copies {{ step }} of a head's {{ width }} channels.
{% endif %}
{% if ring %}
// The cache is a ring: position p is stored at p % {{ ring }}.
{% endif %}
struct {{ args }} {
    uint rows;
    uint context;
{% if ring %}
    uint capacity;
{% endif %}
};

// grid: ceil({{ count }} / {{ threads }}), rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* key [[buffer({{ slot() }})]],
    device const float* value [[buffer({{ slot() }})]],
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device {{ element }}* keys [[buffer({{ slot() }})]],
    device {{ element }}* values [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]]) {
{% if quantized %}
    const uint i = group.x * {{ threads }}u + thread_id;
{% if count % threads != 0 %}
    const uint at = min(i, {{ count - 1 }}u);
{% else %}
    const uint at = i;
{% endif %}
    const uint row = group.y;
    const uint channel = at % {{ width }}u;
    const ulong cached_head = ulong(slots[row]) * {{ key_heads }}ul + ulong(at / {{ width }}u);
    const ulong target = (cached_head * ulong({{ capacity }}) + ulong(positions[row]{{ modulo }})) * {{ kv_stride }}ul;
    const ulong scale_at = target + ulong({{ width }}u + channel / 32u * 2u);
    half key_scale;
    half value_scale;
    const char key_code = encode32(key[row * {{ count }}u + at], &key_scale);
    const char value_code = encode32(value[row * {{ count }}u + at], &value_scale);
{% if count % threads != 0 %}
    if (i >= {{ count }}u) {
        return;
    }
{% endif %}
    keys[target + ulong(channel)] = as_type<uchar>(key_code);
    values[target + ulong(channel)] = as_type<uchar>(value_code);
    if (channel % 32u == 0u) {
        *(device half*)(keys + scale_at) = key_scale;
        *(device half*)(values + scale_at) = value_scale;
    }
{% else %}
    const uint i = group.x * {{ threads }}u + thread_id;
{% if count % threads != 0 %}
    if (i >= {{ count }}u) {
        return;
    }
{% endif %}
    const uint row = group.y;
    const uint head = i / {{ width // step }}u;
    const uint channel = i % {{ width // step }}u * {{ step }}u;
    const uint source = (row * {{ key_heads }}u + head) * {{ width }}u + channel;
    const ulong cached_head = ulong(slots[row]) * {{ key_heads }}ul + ulong(head);
    const ulong target = (cached_head * ulong({{ capacity }}) + ulong(positions[row]{{ modulo }})) * {{ width }}ul + ulong(channel);
    *(device {{ vector }}*)(keys + target) = {{ vector }}(*(device const float{{ step }}*)(key + source));
    *(device {{ vector }}*)(values + target) = {{ vector }}(*(device const float{{ step }}*)(value + source));
{% endif %}
}
