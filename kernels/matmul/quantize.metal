{% set stretches = (width + 127) // 128 %}
// Quantizes rows of {{ width }} values to 16 bits in blocks of 32 columns, for integer MMA.
//
// Four rows and four blocks share {{ quad_packets }} packets of 16 bytes: their codes as fragments of right factors, the
// upper and the lower bytes of a row in turn; the scales of each row; and the sums of each row's codes.
{% if parts %}
// Also sums the squares of each of {{ parts }} parts of a row.
{% endif %}
struct {{ args }} {
    uint rows;
};

// grid: ceil(rows / 4){{ "" if parts else ", ceil(" ~ width ~ " / " ~ 128 * simdgroups ~ ")" }}
[[max_total_threads_per_threadgroup({{ 128 * simdgroups }})]]
kernel void {{ name }}(
    device const float* x [[buffer({{ slot() }})]],
{% if gain %}
    device const float* x_gain [[buffer({{ slot() }})]],
{% endif %}
    device uint* quantized_x [[buffer({{ slot() }})]],
{% if parts %}
    device float* squares_of_x [[buffer({{ slot() }})]],
{% endif %}
    constant {{ args }}& args [[buffer({{ slot() }})]],
    uint2 group_position [[threadgroup_position_in_grid]],
    uint simdgroup_id [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    wait_for_others();

    // A row has {{ simdgroups }} simdgroups.
    const uint row = group_position.x * 4u + simdgroup_id / {{ simdgroups }}u;
    if (row >= args.rows) {
        return;
    }
    const uint part = simdgroup_id % {{ simdgroups }}u;
    device const float* row_x = x + row * {{ x_pitch }}u;
    // A lane has four columns, and eight lanes a block.
    const uint block = lane / 8u;
{% if parts %}
    float squared = 0.0f;
    for (uint stretch = part; stretch < {{ stretches }}u; stretch += {{ simdgroups }}u) {
{% else %}
    const uint stretch = group_position.y * {{ simdgroups }}u + part;
{% if stretches % simdgroups != 0 %}
    if (stretch < {{ stretches }}u) {
{% else %}
    {
{% endif %}
{% endif %}
        float4 xs = {{ load }}(row_x, stretch * 128u + lane * 4u{{ bound }});
{% if parts %}
        squared += dot(xs, xs);
{% endif %}
{% if gain %}
        xs *= {{ load }}(x_gain, stretch * 128u + lane * 4u{{ bound }});
{% endif %}
        uint upper;
        uint lower;
        int sum;
        const float unit = codes_of_block(xs, upper, lower, sum);
        sum += simd_shuffle_xor(sum, ushort(1));
        sum += simd_shuffle_xor(sum, ushort(2));
        sum += simd_shuffle_xor(sum, ushort(4));
        device uint* four = four_blocks(quantized_x, {{ stretches }}u, row, stretch * 4u);
        store_codes(four, row, block, lane % 8u, upper, lower);
        if (lane % 8u == 0u) {
            store_scale(four, row, block, unit, sum);
        }
    }
{% if parts %}
    squared = simd_sum(squared);
    if (lane == 0u) {
        squares_of_x[row * {{ parts }}u + part] = squared;
    }
{% endif %}
}
