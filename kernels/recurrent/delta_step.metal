{% set counted = " && counts" if padded else "" %}
{% set bounded = " && i * 4u + part < " ~ (keys // step) ~ "u" if guarded else "" %}
{% set kept = (counted ~ bounded)[4:] %}
// Gated DeltaNet for one row. `inputs` has queries, keys and values side by side, then gates, beta logits and
// dt. First silu of the causal convolution: the sum of each channel's last {{ taps }} values, from the conv
// state and the row, each times the channel's tap. Then the recurrent state is updated, S = decay * S, S += k
// (beta * (v - S k)), and the result is {{ scale }} * S q, where q and k are divided by sqrt(sum of squares +
// {{ epsilon }}). It is normalized and multiplied by its gate.
//
// Heads: {{ heads }} over {{ key_heads }}. A threadgroup has one head. The conv state is a ring: the value at
// position p is stored at p % {{ taps }}, an entry that no concurrent row reads. S is stored column by
// column, one for each of {{ values }} value channels. Four lanes share a column; each holds every fourth
// {{ vector }} in registers.
struct {{ args }} {
    uint rows;
};

// grid: {{ heads }}, rows
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* inputs [[buffer({{ slot() }})]],
    device const float* taps [[buffer({{ slot() }})]],
    device const float* a_log [[buffer({{ slot() }})]],
    device const float* dt_bias [[buffer({{ slot() }})]],
    device const float* gain [[buffer({{ slot() }})]],
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* conv_state [[buffer({{ slot() }})]],
    device float* recurrent_state [[buffer({{ slot() }})]],
    device float* heads [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group [[threadgroup_position_in_grid]],
{% if simdgroups > 1 %}
    uint thread_id [[thread_index_in_threadgroup]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float partials[{{ 2 * simdgroups }}];
{% else %}
    uint thread_id [[thread_index_in_threadgroup]]) {
{% endif %}
    threadgroup {{ vector }} convolved[{{ convolved }}];  // query, key and value of the head
    const uint head = group.x;
    const uint row = group.y;
    const uint part = thread_id % 4u;
{% if padded %}
    // Lanes past the last column compute unused values.
    const bool counts = thread_id < {{ values * 4 }}u;
    const uint column = min(thread_id / 4u, {{ values - 1 }}u);
{% else %}
    const uint column = thread_id / 4u;
{% endif %}
    const uint key_head = head / {{ group }}u;
    const uint slot = slots[row];
    const uint position = positions[row];

    // The state is in flight while queries, keys and values are computed.
    {{ vector }} state[{{ chunks }}];
    {{ vector }} keys[{{ chunks }}];
    device {{ vector }}* column_state =
        (device {{ vector }}*)(recurrent_state + ((ulong(slot) * {{ heads }}ul + ulong(head)) * {{ values }}ul + ulong(column)) * {{ keys }}ul);
    #pragma unroll
    for (uint i = 0u; i < {{ chunks }}u; i++) {
        state[i] = {{ vector }}(0.0f);
        if (position > 0u{{ counted }}{{ bounded }}) {
            state[i] = column_state[i * 4u + part];
        }
    }

    // Heads that share a key head all compute its query and key; the first of them updates the conv state.
    device const float* own_inputs = inputs + row * {{ pitch }}u;
    threadgroup float* made = (threadgroup float*)convolved;
    for (uint i = thread_id; i < {{ 2 * keys + values }}u; i += {{ threads }}u) {
        const bool is_value = i >= {{ 2 * keys }}u;
        const uint of_key = i % {{ keys }}u + key_head * {{ keys }}u + (i >= {{ keys }}u ? {{ key_heads * keys }}u : 0u);
        const uint of_value = {{ 2 * key_heads * keys }}u + head * {{ values }}u + i - {{ 2 * keys }}u;
        const uint channel = is_value ? of_value : of_key;
        device float* own_conv_state = conv_state + ulong(slot) * {{ taps * channels }}ul + ulong(channel);
        device const float* own_taps = taps + channel * {{ taps }}u;
        const float newest = own_inputs[channel];
        float sum = own_taps[{{ taps - 1 }}] * newest;
        #pragma unroll
        for (uint back = 1u; back < {{ taps }}u; back++) {
            if (position >= back) {
                sum += own_taps[{{ taps - 1 }}u - back] * own_conv_state[(position - back) % {{ taps }}u * {{ channels }}u];
            }
        }
{% if group > 1 %}
        if (is_value || head % {{ group }}u == 0u) {
            own_conv_state[position % {{ taps }}u * {{ channels }}u] = newest;
        }
{% else %}
        own_conv_state[position % {{ taps }}u * {{ channels }}u] = newest;
{% endif %}
        made[i] = silu(sum);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    {
        threadgroup const {{ vector }}* query_row = convolved;
        threadgroup const {{ vector }}* key_row = convolved + {{ keys // step }}u;
        const float row_value = made[{{ 2 * keys }}u + column];
        device const float* gates = own_inputs + {{ channels }}u;
        const float head_beta = sigmoid(gates[{{ heads * values }}u + head]);
        const float head_dt = gates[{{ heads * values + heads }}u + head];

{% include "recurrent/parts/state_readout" %}

{% include "recurrent/parts/norm_gate" %}

        #pragma unroll
        for (uint i = 0u; i < {{ chunks }}u; i++) {
{% if kept %}
            if ({{ kept }}) {
                column_state[i * 4u + part] = state[i];
            }
{% else %}
            column_state[i * 4u + part] = state[i];
{% endif %}
        }
    }
}
