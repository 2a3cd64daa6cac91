{# Dot products with integer MMA for several rows of x, four blocks of 32 columns at a time. #}
{% set stretches = (blocks + 3) // 4 %}
{% set tiles = rows_per_simdgroup // 16 %}
{% set quads = x_rows // 4 %}
{% set pieces = per_block * 2 * tiles %}
{% set from_zero = " ^ uint2(0x80808080u)" if offset else "" %}
{% set in_group = " / " ~ per_group // per_block ~ "u" if per_group > per_block else "" %}
{# Loads a lane's packets and scales of four blocks. #}
{% macro take(codes, scales, stretch) %}
{% if blocks % 4 != 0 %}
// Past the last block x is zero, and W repeats that block.
const uint block = min({{ stretch }} * 4u + quarter, {{ blocks - 1 }}u);
{% else %}
const uint block = {{ stretch }} * 4u + quarter;
{% endif %}
#pragma unroll
for (uint r = 0u; r < {{ 2 * tiles }}u; r++) {
{% if ragged %}
    const uint row = min(first + r * 8u + own_row, {{ outputs - 1 }}u);
{% else %}
    const uint row = first + r * 8u + own_row;
{% endif %}
{% if per_block > 1 %}
    #pragma unroll
    for (uint p = 0u; p < {{ per_block }}u; p++) {
        {{ codes }}[r * {{ per_block }}u + p] = weight_codes[row * {{ stride }}u + block * {{ per_block }}u + p];
    }
{% else %}
    {{ codes }}[r] = weight_codes[row * {{ stride }}u + block];
{% endif %}
{% if nested %}
    {{ scales }}[r] = {{ widened }}(weight_scales, row * {{ stride }}u + block);
{% else %}
    {{ scales }}[r] = {{ widened }}(weight_scales[row * {{ groups }}u + block{{ in_group }}]);
{% endif %}
}
{% endmacro %}
    // A lane loads one of the four blocks, for row `own_row` of each eight rows of W.
    const uint own_row = (lane >> 2u & 4u) | (lane >> 1u & 3u);
    const uint quarter = (lane >> 2u & 2u) | (lane & 1u);

    // Packets of each four rows of x, and the lane's column and row of them. Past the last row it repeats.
    uint quad_packet[{{ quads }}];
    uint column[{{ quads }}];
    uint unit_row[{{ quads }}];
    #pragma unroll
    for (uint q = 0u; q < {{ quads }}u; q++) {
{% if quads > 1 %}
        const uint quad = min(first_row / 4u + q, (args.rows - 1u) / 4u);
{% else %}
        const uint quad = group_position.x;
{% endif %}
        const uint last = min(args.rows - 4u * quad, 4u) - 1u;
        quad_packet[q] = quad * {{ stretches * quad_packets }}u;
        column[q] = min(own_row, 2u * last + 1u) * 4u + quarter;
        unit_row[q] = min(quarter, last);
    }

{% if ahead %}
    // The first packets. In the loop the next packets are in flight while the current ones are multiplied.
    uint4 next[{{ pieces }}];
    {{ scale_type }} next_scales[{{ 2 * tiles }}];
    {
        {{ take("next", "next_scales", "part" if split > 1 else "0u")|indent(8) }}
    }

{% endif %}
    wait_for_others();

    // Sums of row `quarter` of each four rows of x: by block, for rows `own_row` and `own_row + 8` of each tile.
    float sums[{{ quads }}][{{ tiles }}][4][2] = { { { {0.0f} } } };
    for (uint stretch = {{ "part" if split > 1 else "0u" }}; stretch < {{ stretches }}u; stretch += {{ split }}u) {
        uint4 codes[{{ pieces }}];
        {{ scale_type }} scales[{{ 2 * tiles }}];
{% if ahead %}
        const uint following = min(stretch + {{ split }}u, {{ stretches - 1 }}u);
        #pragma unroll
        for (uint i = 0u; i < {{ pieces }}u; i++) {
            codes[i] = next[i];
        }
        #pragma unroll
        for (uint r = 0u; r < {{ 2 * tiles }}u; r++) {
            scales[r] = next_scales[r];
        }
        {{ take("next", "next_scales", "following")|indent(8) }}
{% else %}
        // Weights first: all loads are in flight before the first is used.
        {{ take("codes", "scales", "stretch")|indent(8) }}
{% endif %}

        // Four rows of x: their codes as factors of the four blocks, then scales and sums.
        uint4 factors[{{ quads }}][2];
        float4 units[{{ quads }}];
{% if offset %}
        int4 x_sums[{{ quads }}];
{% endif %}
        #pragma unroll
        for (uint q = 0u; q < {{ quads }}u; q++) {
            device const uint4* four = (device const uint4*)quantized_x + quad_packet[q] + stretch * {{ quad_packets }}u;
            factors[q][0] = four[column[q]];
            factors[q][1] = four[32u + column[q]];
            units[q] = as_type<float4>(four[64u + unit_row[q]]){{ " * float4(0.0625f)" if per_block == 1 else "" }};
{% if offset %}
            x_sums[q] = as_type<int4>(four[68u + unit_row[q]]);
{% endif %}
        }

        // Exchanges words among the lanes of a row of W: word b of a packet becomes the lane's word of block b.
        #pragma unroll
        for (uint i = 0u; i < {{ pieces }}u; i++) {
            codes[i] = transposed_words(codes[i], quarter);
        }
        #pragma unroll
        for (uint tile = 0u; tile < {{ tiles }}u; tile++) {
            #pragma unroll
            for (uint b = 0u; b < 4u; b++) {
                // Weights as signed bytes.
{% if per_block == 1 %}
                const uint2 above = nibbles_as_bytes(codes[2u * tile][b]);
                const uint2 below = nibbles_as_bytes(codes[2u * tile + 1u][b]);
{% else %}
                const uint2 above = uint2(codes[4u * tile][b], codes[4u * tile + 1u][b]){{ from_zero }};
                const uint2 below = uint2(codes[4u * tile + 2u][b], codes[4u * tile + 3u][b]){{ from_zero }};
{% endif %}
                const ushort lane_of_block = ushort((lane & ~9u) | (b & 1u) | (b & 2u) << 2u);
{% if offset %}
                const float2 scale = float2(simd_shuffle(scales[2u * tile].x, lane_of_block), simd_shuffle(scales[2u * tile].y, lane_of_block));
                const float2 other = float2(simd_shuffle(scales[2u * tile + 1u].x, lane_of_block), simd_shuffle(scales[2u * tile + 1u].y, lane_of_block));
{% else %}
                const float scale = simd_shuffle(scales[2u * tile], lane_of_block);
                const float other = simd_shuffle(scales[2u * tile + 1u], lane_of_block);
{% endif %}
                #pragma unroll
                for (uint q = 0u; q < {{ quads }}u; q++) {
                    const uint4 two = factors[q][b / 2u];
                    const int2 products = quad_products(above, below, b % 2u == 0u ? two.xy : two.zw, lane);
                    const float own_unit = units[q][b];
{% if offset %}
                    // 8-bit weights are unsigned; half of their range is subtracted as an offset.
                    const int taken_away = 128 * x_sums[q][b];
                    const float own_sum = float({{ "16 * " if per_block == 1 else "" }}x_sums[q][b]);
                    const float2 whole = float2(float(products.x + taken_away), float(products.y + taken_away));
                    sums[q][tile][b][0] += own_unit * (scale.x * whole.x + scale.y * own_sum);
                    sums[q][tile][b][1] += own_unit * (other.x * whole.y + other.y * own_sum);
{% else %}
                    sums[q][tile][b][0] += scale * own_unit * float(products.x);
                    sums[q][tile][b][1] += other * own_unit * float(products.y);
{% endif %}
                }
            }
        }
    }
