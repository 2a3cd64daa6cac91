{% set capacity = "args.capacity" if ring else "args.context" %}
{% set modulo = " % " ~ ring ~ "u" if ring else "" %}
{% set first_value = query_heads + key_heads %}
{% set source_head = "(head < " ~ first_value ~ "u ? head : head - " ~ key_heads ~ "u)" if values_are_keys else "head" %}
{% if pairs == 0 %}
// {{ "Normalizes queries" if norm else "Copies queries" }} (heads: {{ query_heads }}) and keys (heads:
// {{ key_heads }}). Queries are written to q; keys and values are appended to the KV cache at the row's slot
// and position. {{ "A simdgroup processes a head of" if by_head else "A thread processes two of a head's" }}
// {{ width }}{{ " channels, a lane two of each 64" if by_head else " channels" }}.
{% if values %}
// Values are normalized too, without a gain.
{% endif %}
{% elif by_head and not norm %}
// Applies RoPE to queries (heads: {{ query_heads }}) and keys (heads: {{ key_heads }}). Queries are written
// to q; keys and values are appended to the KV cache at the row's slot and position. A simdgroup processes a
// head of {{ width }} channels, a lane pairs of them.
{% elif norm %}
// {{ "Applies RoPE and a norm to" if after_rope else "Applies a norm and RoPE to" }} queries (heads:
// {{ query_heads }}) and keys (heads: {{ key_heads }}). Queries are written to q; keys and values are
// appended to the KV cache at the row's slot and position. A simdgroup processes a head of {{ width }}
// channels, a lane pairs of them.
{% if values %}
// Values are normalized too, without a gain.
{% endif %}
{% else %}
// Applies RoPE to queries (heads: {{ query_heads }}) and keys (heads: {{ key_heads }}). Queries are written
// to q; keys and values are appended to the KV cache at the row's slot and position. A thread processes one
// pair of a head's {{ width }} channels.
{% endif %}
{% if values_are_keys %}
// Values are computed from the heads of keys.
{% endif %}
{% if quantized %}
// The cache is q8_0: {{ width }} quantized values per head, followed by a scale for each 32.
{% endif %}
{% if ring %}
// The cache is a ring: position p is stored at p % {{ ring }}.
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

struct {{ args }} {
    uint rows;
    uint context;
{% if ring %}
    uint capacity;
{% endif %}
};

{% if by_head %}
// grid: ceil({{ row_heads }} / {{ simdgroups }}), rows
{% else %}
// grid: ceil({{ row_pairs }} / {{ threads }}), rows
{% endif %}
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* qkv [[buffer({{ slot() }})]],
{% if norm %}
    device const float* query_gain [[buffer({{ slot() }})]],
    device const float* key_gain [[buffer({{ slot() }})]],
{% endif %}
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* q [[buffer({{ slot() }})]],
    device {{ element }}* keys [[buffer({{ slot() }})]],
    device {{ element }}* values [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
{% if by_head %}
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
{% else %}
    uint thread_id [[thread_index_in_threadgroup]]) {
{% endif %}
{% if quantized %}
    threadgroup float staged[{{ simdgroups * width }}];  // a head of keys or values for each simdgroup
{% endif %}
    const uint row = group.y;
{% if dynamic_ntk %}
    // For contexts longer than {{ long }} positions pair k rotates at e^(slope * k) times its frequency.
    const float stretch = {{ dynamic_ntk.factor }} * (float(args.context) / {{ dynamic_ntk.original_context }}) - {{ dynamic_ntk.factor_minus_1 }};
    const float slope = args.context > {{ long }}u ? -precise::log(stretch) / {{ dynamic_ntk.last_pair }} : 0.0f;
{% elif long %}
    // Offset of the frequencies for this context length.
    const uint table_offset = args.context > {{ long }}u ? {{ pairs }}u : 0u;
{% endif %}
{% if by_head %}
    const uint head = group.x * {{ simdgroups }}u + simdgroup_id;
    const uint position = positions[row];
    device const float* source = qkv + row * {{ row_width }}u + {{ source_head }} * {{ width }}u;

{% if norm %}
    // The mean of squares{{ ", which RoPE preserves" if after_rope else "" }}.
{% endif %}
    uint one[{{ pairs_each }}];
    uint other[{{ pairs_each }}];
    float2 channels[{{ pairs_each }}];
{% if norm %}
    float squares = 0.0f;
{% endif %}
    #pragma unroll
    for (uint i = 0u; i < {{ pairs_each }}u; i++) {
        const uint k = lane + 32u * i;
        one[i] = {{ one }};
        other[i] = {{ other }};
{% if idle_pairs %}
        channels[i] = k < {{ half }}u ? float2(source[one[i]], source[other[i]]) : float2(0.0f);
{% else %}
        channels[i] = float2(source[one[i]], source[other[i]]);
{% endif %}
{% if norm %}
        squares += dot(channels[i], channels[i]);
{% endif %}
    }
{% if norm %}
    const float factor = rsqrt(simd_sum(squares) / {{ width_float }} + {{ epsilon }});
{% endif %}

{% if values %}
    // Heads of a row: {{ query_heads }} of queries, {{ key_heads }} of keys, {{ key_heads }} of values, which
    // have no RoPE.
{% else %}
    // Heads of a row: {{ query_heads }} of queries, {{ key_heads }} of keys, {{ key_heads }} of values, which
    // are copied.
{% endif %}
    const bool is_query = head < {{ query_heads }}u;
    const bool is_value = head >= {{ query_heads + key_heads }}u;
    const uint key_head = is_query ? 0u : (head - {{ query_heads }}u) % {{ key_heads }}u;
    const ulong place = (ulong(slots[row]) * {{ key_heads }}ul + ulong(key_head)) * ulong({{ capacity }}) + ulong(position{{ modulo }});
    device float* target = q + (row * {{ query_heads }}u + head) * {{ width }}u;
    device {{ element }}* cached = (is_value ? values : keys) + place * {{ kv_stride }}ul;
{% if norm %}
    device const float* gain = is_query ? query_gain : key_gain;
{% endif %}
    #pragma unroll
    for (uint i = 0u; i < {{ pairs_each }}u; i++) {
{% if pairs or idle_pairs %}
        const uint k = lane + 32u * i;
{% endif %}
{% if idle_pairs %}
        if (k >= {{ half }}u) {
            continue;
        }
{% endif %}
{% if pairs or norm %}
        if (!is_value) {
{% if norm and not after_rope %}
            channels[i] *= factor * float2(gain[one[i]], gain[other[i]]);
{% endif %}
{% if pairs == half %}
            channels[i] = rope(channels[i], float(position) * {{ frequency }}, {{ magnitude }});
{% elif pairs %}
            if (k < {{ pairs }}u) {
                channels[i] = rope(channels[i], float(position) * {{ frequency }}, {{ magnitude }});
            }
{% endif %}
{% if norm and after_rope %}
            channels[i] *= factor * float2(gain[one[i]], gain[other[i]]);
{% endif %}
{% if values %}
        } else {
            channels[i] *= factor;
{% endif %}
        }
{% endif %}
        if (is_query) {
            target[one[i]] = channels[i].x;
            target[other[i]] = channels[i].y;
        } else {
{% if quantized %}
            staged[simdgroup_id * {{ width }}u + one[i]] = channels[i].x;
            staged[simdgroup_id * {{ width }}u + other[i]] = channels[i].y;
{% else %}
            cached[one[i]] = {{ element }}(channels[i].x);
            cached[other[i]] = {{ element }}(channels[i].y);
{% endif %}
        }
    }
{% if quantized %}
    simdgroup_barrier(mem_flags::mem_threadgroup);

    // Quantize keys and values, 32 at a time.
    if (!is_query) {
        for (uint block = 0u; block < {{ width // 32 }}u; block++) {
            half scale;
            const char code = encode32(staged[simdgroup_id * {{ width }}u + block * 32u + lane], &scale);
            cached[block * 32u + lane] = as_type<uchar>(code);
            if (lane == 0u) {
                *(device half*)(cached + {{ width }}u + block * 2u) = scale;
            }
        }
    }
{% endif %}
}
{% else %}
    const uint pair = group.x * {{ threads }}u + thread_id;
{% if row_pairs % threads != 0 %}
    if (pair >= {{ row_pairs }}u) {
        return;
    }
{% endif %}

    // Heads of a row: {{ query_heads }} of queries, {{ key_heads }} of keys, {{ key_heads }} of values, which
    // are copied.
    const uint head = pair / {{ half }}u;
    const uint k = pair % {{ half }}u;
    const uint one = {{ one }};
    const uint other = {{ other }};
    const uint position = positions[row];
    device const float* source = qkv + row * {{ row_width }}u + {{ source_head }} * {{ width }}u;
    {{ "float2" if pairs else "const float2" }} channels = float2(source[one], source[other]);
{% if pairs %}
    if (head < {{ query_heads + key_heads }}u{% if pairs < half %} && k < {{ pairs }}u{% endif %}) {
        channels = rope(channels, float(position) * {{ frequency }}, {{ magnitude }});
    }
{% endif %}

    // Store.
    if (head < {{ query_heads }}u) {
        device float* target = q + (row * {{ query_heads }}u + head) * {{ width }}u;
        target[one] = channels.x;
        target[other] = channels.y;
    } else {
        const bool is_key = head < {{ query_heads + key_heads }}u;
        const ulong key_head = ulong(head - (is_key ? {{ query_heads }}u : {{ query_heads + key_heads }}u));
        const ulong place = (ulong(slots[row]) * {{ key_heads }}ul + key_head) * ulong({{ capacity }}) + ulong(position{{ modulo }});
        device {{ element }}* target = (is_key ? keys : values) + place * {{ width }}ul;
        target[one] = {{ element }}(channels.x);
        target[other] = {{ element }}(channels.y);
    }
}
{% endif %}
