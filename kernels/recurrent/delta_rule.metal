{% set counted = " && counts" if padded else "" %}
{% set bounded = " && i * 4u + part < " ~ (keys // step) ~ "u" if guarded else "" %}
// Gated delta rule. For each row the recurrent state S of each value head is updated, S = decay * S, then S
// += k (beta * (v - S k)), and the result is {{ scale }} * S q, where q and k are divided by sqrt(sum of
// squares + {{ epsilon }}). Heads: {{ heads }} over {{ key_heads }}. A threadgroup has one head. S is stored
// column by column, one for each of {{ values }} value channels. Four lanes share a column; each holds every
// fourth {{ vector }} in registers. The state is read at a slot's first row and written after its last.
{% if gated %}
//
// `convolved` has queries, keys and values side by side. In `inputs` gates, beta logits and dt follow the
// projections of these. The output of a head is normalized and multiplied by its gate.
{% endif %}
struct {{ args }} {
    uint rows;
};

// grid: {{ heads }}
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
{% if gated %}
    device const float* convolved [[buffer({{ slot() }})]],
    device const float* inputs [[buffer({{ slot() }})]],
{% else %}
    device const float* query [[buffer({{ slot() }})]],
    device const float* key [[buffer({{ slot() }})]],
    device const float* value [[buffer({{ slot() }})]],
    device const float* dt [[buffer({{ slot() }})]],
    device const float* beta [[buffer({{ slot() }})]],
{% endif %}
    device const float* a_log [[buffer({{ slot() }})]],
    device const float* dt_bias [[buffer({{ slot() }})]],
{% if gated %}
    device const float* gain [[buffer({{ slot() }})]],
{% endif %}
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* recurrent_state [[buffer({{ slot() }})]],
    device float* heads [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint head [[threadgroup_position_in_grid]],
{% if gated and simdgroups > 1 %}
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float partials[{{ 2 * simdgroups }}];  // for even and odd rows
{% else %}
    uint thread_id [[thread_index_in_threadgroup]]) {
{% endif %}
    const uint part = thread_id % 4u;
{% if padded %}
    // Lanes past the last column compute unused values.
    const bool counts = thread_id < {{ values * 4 }}u;
    const uint column = min(thread_id / 4u, {{ values - 1 }}u);
{% else %}
    const uint column = thread_id / 4u;
{% endif %}
    const uint key_head = head / {{ group }}u;

    {{ vector }} state[{{ chunks }}];
    {{ vector }} keys[{{ chunks }}];
    for (uint row = 0u; row < args.rows; row++) {
        const uint slot = slots[row];
        const uint position = positions[row];
        device {{ vector }}* column_state =
            (device {{ vector }}*)(recurrent_state + ((ulong(slot) * {{ heads }}ul + ulong(head)) * {{ values }}ul + ulong(column)) * {{ keys }}ul);
        bool follows = false;
        if (row > 0u) {
            follows = slots[row - 1u] == slot && positions[row - 1u] + 1u == position;
        }
        if (!follows) {
            #pragma unroll
            for (uint i = 0u; i < {{ chunks }}u; i++) {
                state[i] = {{ vector }}(0.0f);
                if (position > 0u{{ counted }}{{ bounded }}) {
                    state[i] = column_state[i * 4u + part];
                }
            }
        }

{% if gated %}
        device const float* own_convolved = convolved + row * {{ channels }}u;
        device const {{ vector }}* query_row = (device const {{ vector }}*)(own_convolved + key_head * {{ keys }}u);
        device const {{ vector }}* key_row = (device const {{ vector }}*)(own_convolved + {{ key_heads * keys }}u + key_head * {{ keys }}u);
        const float row_value = own_convolved[{{ 2 * key_heads * keys }}u + head * {{ values }}u + column];
        device const float* gates = inputs + row * {{ pitch }}u + {{ channels }}u;
        const float head_beta = sigmoid(gates[{{ heads * values }}u + head]);
        const float head_dt = gates[{{ heads * values + heads }}u + head];
{% else %}
        device const {{ vector }}* query_row = (device const {{ vector }}*)(query + (row * {{ key_heads }}u + key_head) * {{ keys }}u);
        device const {{ vector }}* key_row = (device const {{ vector }}*)(key + (row * {{ key_heads }}u + key_head) * {{ keys }}u);
        const float row_value = value[(row * {{ heads }}u + head) * {{ values }}u + column];
        const float head_beta = beta[row * {{ heads }}u + head];
        const float head_dt = dt[row * {{ heads }}u + head];
{% endif %}

{% include "recurrent/parts/state_readout" %}

{% include "recurrent/parts/norm_gate" %}

        bool ends = true;
        if (row + 1u < args.rows) {
            ends = slots[row + 1u] != slot || positions[row + 1u] != position + 1u;
        }
        #pragma unroll
        for (uint i = 0u; i < {{ chunks }}u; i++) {
            if (ends{{ counted }}{{ bounded }}) {
                column_state[i * 4u + part] = state[i];
            }
        }
    }
}
