// Causal depthwise convolution: for each channel the sum of its last {{ taps }} values in the slot, each
// times the channel's tap, and y = {{ result }}. The channels are the first of rows of {{ pitch }}. The conv
// state of a slot is a ring: the value at position p is stored at p % {{ taps }}. A thread has one channel
// and processes the rows in order, so that it alone reads and writes the channel's conv state.
struct {{ args }} {
    uint rows;
};

// grid: ceil({{ width }} / {{ threads }})
[[max_total_threads_per_threadgroup({{ threads }})]]
kernel void {{ name }}(
    device const float* x [[buffer({{ slot() }})]],
    device const float* taps [[buffer({{ slot() }})]],
    device const uint* slots [[buffer({{ slot() }})]],
    device const uint* positions [[buffer({{ slot() }})]],
    device float* conv_state [[buffer({{ slot() }})]],
    device float* y [[buffer({{ slot() }})]],
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_id [[thread_index_in_threadgroup]]) {
    const uint channel = group * {{ threads }}u + thread_id;
{% if width % threads != 0 %}
    if (channel >= {{ width }}u) {
        return;
    }
{% endif %}
    float weights[{{ taps }}];
    #pragma unroll
    for (uint i = 0u; i < {{ taps }}u; i++) {
        weights[i] = taps[channel * {{ taps }}u + {{ taps - 1 }}u - i];
    }

    // Values of the previous rows, most recent first.
    float before[{{ taps - 1 }}];
    for (uint row = 0u; row < args.rows; row++) {
        const uint slot = slots[row];
        const uint position = positions[row];
        device float* channel_state = conv_state + ulong(slot) * {{ taps * width }}ul + ulong(channel);
        bool follows = false;
        if (row > 0u) {
            follows = slots[row - 1u] == slot && positions[row - 1u] + 1u == position;
        }
        if (!follows) {
            #pragma unroll
            for (uint i = 0u; i < {{ taps - 1 }}u; i++) {
                before[i] = 0.0f;
                if (position > i) {
                    before[i] = channel_state[(position - i - 1u) % {{ taps }}u * {{ width }}u];
                }
            }
        }

        const float value = x[row * {{ pitch }}u + channel];
        float sum = weights[0] * value;
        #pragma unroll
        for (uint i = 0u; i < {{ taps - 1 }}u; i++) {
            sum += weights[i + 1u] * before[i];
        }
        y[row * {{ width }}u + channel] = {{ result }};

        channel_state[position % {{ taps }}u * {{ width }}u] = value;
        #pragma unroll
        for (uint i = {{ taps - 2 }}u; i > 0u; i--) {
            before[i] = before[i - 1u];
        }
        before[0] = value;
    }
}
