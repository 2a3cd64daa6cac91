{% set dotted = "dot(A, B)" if vector == "float4" else "A * B" %}
{% set guarded = chunks * 4 * step != keys %}
{% set padded = threads != values * 4 %}
{% set counted = " && counts" if padded else "" %}
{% set bounded = " && i * 4u + part < " ~ (keys // step) ~ "u" if guarded else "" %}
// What the memory of each value head says to the queries of rows, each time it has learnt the row's key and value:
// S = decay * S, then S += k (strength * (v - S k)), and the result is {{ scale }} * S q, where q and k have been divided by
// sqrt(sum of squares + {{ epsilon }}). Heads: {{ heads }} over {{ key_heads }}. A threadgroup has a head.
// S lies column by column, one for each of {{ values }} channels of a value. Four lanes share a column, of which each holds every
// fourth {{ vector }} in registers; it is read where a slot's rows begin, and written where they end. Rows from `kept` on leave no
// trace.
struct {{ args }} {
    uint rows;
    uint kept;
};

// grid: {{ heads }}
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* query [[buffer({{ slot() }})]],
    device const float* key [[buffer({{ slot() }})]],
    device const float* value [[buffer({{ slot() }})]],
    device const float* time [[buffer({{ slot() }})]],
    device const float* strength [[buffer({{ slot() }})]],
    device const float* rate [[buffer({{ slot() }})]],
    device const float* bias [[buffer({{ slot() }})]],
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* memory [[buffer({{ slot() }})]],
    device float* heads [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint head [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]]) {
    const uint part = thread_id % 4u;
{% if padded %}
    // Lanes beyond the last column compute what nobody looks at.
    const bool counts = thread_id < {{ values * 4 }}u;
    const uint column = min(thread_id / 4u, {{ values - 1 }}u);
{% else %}
    const uint column = thread_id / 4u;
{% endif %}
    const uint key_head = head / {{ group }}u;

    {{ vector }} held[{{ chunks }}];
    {{ vector }} keys[{{ chunks }}];
    for (uint row = 0u; row < args.kept; row++) {
        const uint slot = slots[row];
        const uint position = positions[row];
        device {{ vector }}* own =
            (device {{ vector }}*)(memory + ((ulong(slot) * {{ heads }}ul + ulong(head)) * {{ values }}ul + ulong(column)) * {{ keys }}ul);
        bool follows = false;
        if (row > 0u) {
            follows = slots[row - 1u] == slot && positions[row - 1u] + 1u == position;
        }
        if (!follows) {
            #pragma unroll
            for (uint i = 0u; i < {{ chunks }}u; i++) {
                held[i] = {{ vector }}(0.0f);
                if (position > 0u{{ counted }}{{ bounded }}) {
                    held[i] = own[i * 4u + part];
                }
            }
        }

        // All that the row asks of the memory, in one pass over it. Lengths are divided out at the end.
        device const {{ vector }}* asked = (device const {{ vector }}*)(query + (row * {{ key_heads }}u + key_head) * {{ keys }}u);
        device const {{ vector }}* told = (device const {{ vector }}*)(key + (row * {{ key_heads }}u + key_head) * {{ keys }}u);
        float known = 0.0f;
        float said = 0.0f;
        float key_squares = 0.0f;
        float query_squares = 0.0f;
        float likeness = 0.0f;
        #pragma unroll
        for (uint i = 0u; i < {{ chunks }}u; i++) {
{% if guarded %}
            const uint at = min(i * 4u + part, {{ keys // step - 1 }}u);
            const float there = i * 4u + part < {{ keys // step }}u ? 1.0f : 0.0f;
            const {{ vector }} q = asked[at] * there;
            keys[i] = told[at] * there;
{% else %}
            const {{ vector }} q = asked[i * 4u + part];
            keys[i] = told[i * 4u + part];
{% endif %}
            known += {{ dotted | replace("A", "held[i]") | replace("B", "keys[i]") }};
            said += {{ dotted | replace("A", "held[i]") | replace("B", "q") }};
            key_squares += {{ dotted | replace("A", "keys[i]") | replace("B", "keys[i]") }};
            query_squares += {{ dotted | replace("A", "q") | replace("B", "q") }};
            likeness += {{ dotted | replace("A", "keys[i]") | replace("B", "q") }};
        }
{% for distance in [1, 2] %}
{% for sum in ["known", "said", "key_squares", "query_squares", "likeness"] %}
        {{ sum }} += simd_shuffle_xor({{ sum }}, ushort({{ distance }}));
{% endfor %}
{% endfor %}

        // What is new, and what is left of the old.
        const uint scalar = row * {{ heads }}u + head;
        const float decay = exp(-exp(rate[head]) * softplus(time[scalar] + bias[head]));
        const float key_scale = rsqrt(key_squares + {{ epsilon }});
        const float query_scale = {{ scale }} * rsqrt(query_squares + {{ epsilon }});
        const float unknown = value[scalar * {{ values }}u + column] - decay * known * key_scale;
        const float learnt = strength[scalar] * unknown * key_scale;
        #pragma unroll
        for (uint i = 0u; i < {{ chunks }}u; i++) {
            held[i] = decay * held[i] + learnt * keys[i];
        }
        if (part == 0u{{ counted }}) {
            heads[scalar * {{ values }}u + column] = query_scale * (decay * said + learnt * likeness);
        }

        bool ends = true;
        if (row + 1u < args.kept) {
            ends = slots[row + 1u] != slot || positions[row + 1u] != position + 1u;
        }
        #pragma unroll
        for (uint i = 0u; i < {{ chunks }}u; i++) {
            if (ends{{ counted }}{{ bounded }}) {
                own[i * 4u + part] = held[i];
            }
        }
    }
    for (uint row = args.kept; row < args.rows; row++) {
        if (part == 0u{{ counted }}) {
            heads[(row * {{ heads }}u + head) * {{ values }}u + column] = 0.0f;
        }
    }
}
