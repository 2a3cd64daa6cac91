{% set capacity = "args.capacity" if ring else "args.context" %}
{% set modulo = " % " ~ ring ~ "u" if ring else "" %}
// softmax({{ scale }} * q k) v for a small batch. A threadgroup processes one KV split of a row, and the
// {{ group }} query heads that share a KV head.
//
{% if knobs.mma %}
// A simdgroup loads blocks of 16 positions straight to registers and processes eight heads at once with MMA.
// Queries and weights are each split into an f16 value and an f16 remainder.
{% else %}
// A simdgroup loads blocks of {{ block }} positions straight to registers. {{ lanes }} lanes share a position, with
// {{ 8 * packets|length }} channels each, which are reused for {{ heads_each }} heads.
{% endif %}
// No barrier is needed before the end, where the simdgroups combine their sums. The softmax is online: sums
// are rescaled whenever the maximum grows. It uses powers of 2, with scores scaled accordingly.
{% if ring %}
//
// The cache is a ring: position p is stored at p % {{ ring }}.
{% endif %}
{% if prologue %}
//
{% if appends %}
// The threadgroup first prepares its heads. The threadgroup with the last split also prepares the row's own
// key and value, appends them to the cache, and starts with their score, so that it does not read what it
// writes. With several rows of one sequence, a kernel before this one appends the keys and values of all rows.
{% else %}
// The threadgroup first prepares its heads. The row's own key and value are already in the cache.
{% endif %}
{% if values_are_keys %}
// Values are computed from the heads of keys.
{% endif %}
{% if appends and prologue.norm and prologue.norm.values %}
// Values are normalized too, without a gain.
{% endif %}
{% if pairs %}

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

{% endif %}
struct {{ args }} {
    uint rows;
    uint context;
{% if ring %}
    uint capacity;
{% endif %}
    uint splits;
    uint split_positions;
{% if appends %}
    uint appends;  // 0 if the keys and values of all rows are in the cache
{% endif %}
};

// grid: splits, {{ key_heads }}, rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
{% if appends %}
    device const float* qkv [[buffer({{ slot() }})]],
{% if prologue.norm %}
    device const float* query_gain [[buffer({{ slot() }})]],
    device const float* key_gain [[buffer({{ slot() }})]],
{% endif %}
    device {{ element }}* keys [[buffer({{ slot() }})]],
    device {{ element }}* values [[buffer({{ slot() }})]],
{% else %}
    device const float* q [[buffer({{ slot() }})]],
{% if prologue and prologue.norm %}
    device const float* query_gain [[buffer({{ slot() }})]],
{% endif %}
    device const {{ element }}* keys [[buffer({{ slot() }})]],
    device const {{ element }}* values [[buffer({{ slot() }})]],
{% endif %}
{% if sinks %}
    device const float* sinks [[buffer({{ slot() }})]],
{% endif %}
{% if gates %}
    device const float* gates [[buffer({{ slot() }})]],
{% endif %}
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* partials [[buffer({{ slot() }})]],
    device float* heads [[buffer({{ slot() }})]],
{% if quantizes %}
    device uint* quantized_heads [[buffer({{ slot() }})]],
{% endif %}
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
{% if staged %}
    threadgroup float shared[{{ shared }}];  // queries, {{ pitch }} floats per head; at the end sums, {{ sums_pitch }} per simdgroup
{% else %}
    threadgroup float shared[{{ shared }}];  // sums at the end, {{ sums_pitch }} floats per simdgroup
{% endif %}
    const uint split = group.x;
    const uint row = group.z;
    const uint first_head = row * {{ query_heads }}u + group.y * {{ group }}u;

    // This KV split of the row's positions; it may be empty.
    const uint position = positions[row];
    // The number of splits depends on the row's position only: other rows of the pass may have more. Further
    // splits are empty.
    const uint own_splits = min(args.splits, position / args.split_positions + 1u);
{% if window %}
    const uint seen = min(position + 1u, {{ window }}u);
    const uint oldest = position + 1u - seen;
    const uint begin = oldest + seen * split / own_splits;
{% if appends %}
    const bool newest = split + 1u == own_splits;
    const uint end = newest ? position : oldest + seen * min(split + 1u, own_splits) / own_splits;
{% else %}
    const uint end = oldest + seen * min(split + 1u, own_splits) / own_splits;
{% endif %}
{% else %}
    const uint begin = (position + 1u) * split / own_splits;
{% if appends %}
    const bool newest = split + 1u == own_splits;
    const uint end = newest ? position : (position + 1u) * min(split + 1u, own_splits) / own_splits;
{% else %}
    const uint end = (position + 1u) * min(split + 1u, own_splits) / own_splits;
{% endif %}
{% endif %}
    const ulong cached_head = ulong(slots[row]) * {{ key_heads }}ul + ulong(group.y);
    const ulong cached = cached_head * ulong({{ capacity }}) * {{ kv_stride }}ul;
    device const {{ element }}* cached_keys = keys + cached;
    device const {{ element }}* cached_values = values + cached;

{% if knobs.mma %}
{% include "attention/parts/decode_mma" %}
{% else %}
{% include "attention/parts/decode_simd" %}
{% endif %}
}
