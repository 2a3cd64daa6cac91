// Appends latents ({{ width }} channels) and RoPE keys ({{ rope_width }}) to the MLA cache at the row's slot and
// position. A thread copies one channel.
struct {{ args }} {
    uint rows;
    uint context;
};

// grid: ceil({{ kv_stride }} / {{ threads }}), rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* latent [[buffer({{ slot() }})]],
    device const float* key [[buffer({{ slot() }})]],
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device {{ element }}* latents [[buffer({{ slot() }})]],
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
    const ulong target = (ulong(slots[row]) * ulong(args.context) + ulong(positions[row])) * {{ kv_stride }}ul + ulong(channel);
    const float value = channel < {{ width }}u ? latent[row * {{ width }}u + channel] : key[row * {{ rope_width }}u + channel - {{ width }}u];
    latents[target] = {{ element }}(value);
}
