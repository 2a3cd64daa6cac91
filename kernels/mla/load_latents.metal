// Loads a KV tile of a slot as f32, with latents ({{ width }} channels) and RoPE keys ({{ rope_width }}) in
// separate buffers. A row is a position, and a thread copies one channel. All rows of the pass belong to one
// slot.
struct {{ args }} {
    uint rows;
    uint context;
    uint begin;
};

// grid: ceil({{ kv_stride }} / {{ threads }}), rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const {{ element }}* latents [[buffer({{ slot() }})]],
    device const uint* slots [[buffer({{ slot() }})]],
    device float* latent_tile [[buffer({{ slot() }})]],
    device float* k_rope [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]]) {
    const uint row = group.y;
    const uint channel = group.x * {{ threads }}u + thread_id;
{% if kv_stride % threads != 0 %}
    if (channel >= {{ kv_stride }}u) {
        return;
    }
{% endif %}
    const ulong position = ulong(slots[0]) * ulong(args.context) + ulong(args.begin + row);
    const float value = float(latents[position * {{ kv_stride }}ul + ulong(channel)]);
    if (channel < {{ width }}u) {
        latent_tile[row * {{ width }}u + channel] = value;
    } else {
        k_rope[row * {{ rope_width }}u + channel - {{ width }}u] = value;
    }
}
