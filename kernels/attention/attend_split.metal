{% set room = "args.capacity" if ring else "args.context" %}
{% set around = " % " ~ ring ~ "u" if ring else "" %}
// softmax({{ scale }} * q k) v of few rows. A threadgroup takes one share of the positions that a row sees, and the {{ group }} query
// heads that read one key head.
//
{% if knobs.units %}
// A simdgroup takes blocks of 16 positions, straight from memory to registers, as matrix units meet them: eight heads at
// once. They know halves: of queries and weights there are the nearest and what these leave. Nobody waits for others before
// the end, where simdgroups join their sums.
//{% else %}
// A simdgroup takes blocks of {{ block }} positions, straight from memory to registers. Lanes that share a position: {{ lanes }}, with {{ 8 * packets|length }}
// channels each; what they load serves {{ heads_each }} heads. Nobody waits for others before the end, where simdgroups join their
// sums.{% endif %} The softmax is online: sums are scaled down whenever the maximum grows. It takes powers of 2, and scores accordingly.
{% if ring %}
//
// The cache is a ring: position p lies at p % {{ ring }}.
{% endif %}
{% if prologue %}
//
{% if appends %}
// Before that the threadgroup prepares its heads; the one that has the last share prepares the row's own key as well, gives
// key and value to the cache, and begins with their score, so that nothing written here is read here.
{% else %}
// Before that the threadgroup prepares its heads. The row's own key and value are in the cache.
{% endif %}
{% if values_are_keys %}
// Values are made of the heads that keys are made of.
{% endif %}
{% if appends and prologue.norm and prologue.norm.values %}
// Values are normed, too, without a gain.
{% endif %}
{% if pairs %}

// Radians a position, for each pair of channels that turns.
{% if long and not stretched %}
// After them those of contexts of more than {{ long }} positions.
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
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint3 group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
{% if staged %}
    threadgroup float shared[{{ shared }}];  // queries, {{ pitch }} floats a head; at last sums, {{ sums_pitch }} a simdgroup
{% else %}
    threadgroup float shared[{{ shared }}];  // sums at last, {{ sums_pitch }} floats a simdgroup
{% endif %}
    const uint split = group.x;
    const uint row = group.z;
    const uint first_head = row * {{ query_heads }}u + group.y * {{ group }}u;

    // This share of the positions that the row sees; it may be empty.
    const uint position = positions[row];
{% if window %}
    const uint seen = min(position + 1u, {{ window }}u);
    const uint oldest = position + 1u - seen;
    const uint begin = oldest + seen * split / args.splits;
{% if appends %}
    const bool newest = split + 1u == args.splits;
    const uint end = newest ? position : oldest + seen * (split + 1u) / args.splits;
{% else %}
    const uint end = oldest + seen * (split + 1u) / args.splits;
{% endif %}
{% else %}
    const uint begin = (position + 1u) * split / args.splits;
{% if appends %}
    const bool newest = split + 1u == args.splits;
    const uint end = newest ? position : (position + 1u) * (split + 1u) / args.splits;
{% else %}
    const uint end = (position + 1u) * (split + 1u) / args.splits;
{% endif %}
{% endif %}
    const ulong cached_head = ulong(slots[row]) * {{ key_heads }}ul + ulong(group.y);
    const ulong cached = cached_head * ulong({{ room }}) * {{ record }}ul;
    device const {{ element }}* cached_keys = keys + cached;
    device const {{ element }}* cached_values = values + cached;

{% if knobs.units %}
{% include "attention/parts/decode_mma" %}
{% else %}
{% include "attention/parts/decode_simd" %}
{% endif %}
}
