{# Dot products with MMA of weights in f16 or bf16, for one row of x or several, 64 columns at a time. #}
{% set tiles = rows_per_simdgroup // 16 %}
{% set quads = (x_rows + 3) // 4 %}
{% set steps = (packets + 7) // 8 %}
{# Loads a lane's packets of a step, of two adjacent rows: columns 32 to 63 for the lanes of odd rows. #}
{% macro take(codes, step) %}
{% if packets % 8 != 0 %}
// Past the last packet x is zero, and W repeats that packet.
const uint packet = min({{ step }} * 8u + odd * 4u + quarter, {{ packets - 1 }}u);
{% else %}
const uint packet = {{ step }} * 8u + odd * 4u + quarter;
{% endif %}
#pragma unroll
for (uint r = 0u; r < {{ 4 * tiles }}u; r++) {
{% if ragged %}
    const uint weight_row = min(first + r / 2u * 8u + own_row - odd + r % 2u, {{ outputs - 1 }}u);
{% else %}
    const uint weight_row = first + r / 2u * 8u + own_row - odd + r % 2u;
{% endif %}
    {{ codes }}[r] = weight_{{ planes[0].name }}[weight_row * {{ stride }}u + packet];
}
{% endmacro %}
{# Loads a lane's columns of x of a step. #}
{% macro take_x(xs, step) %}
#pragma unroll
for (uint i = 0u; i < 4u; i++) {
    const uint column = {{ step }} * 64u + i / 2u * 32u + quarter * 8u + i % 2u * 4u;
    #pragma unroll
    for (uint q = 0u; q < {{ quads }}u; q++) {
        {{ xs }}[q][i] = {{ load }}({{ "x + x_begin[q]" if x_rows > 1 else "x" }}, column{{ bound }});
    }
}
{% endmacro %}
    // A lane has columns 8 `quarter` to 8 `quarter` + 7 of each 32, of row `own_row` of each eight rows of W, and of
    // half of the bits of row `own_row` / 2 of each four rows of x.
    const uint own_row = (lane >> 2u & 4u) | (lane >> 1u & 3u);
    const uint quarter = (lane >> 2u & 2u) | (lane & 1u);
    const uint odd = own_row & 1u;
{% if x_rows > 1 %}
    // Past the last row of x it repeats.
    uint x_begin[{{ quads }}];
    #pragma unroll
    for (uint q = 0u; q < {{ quads }}u; q++) {
        x_begin[q] = min(first_row + 4u * q + own_row / 2u, args.rows - 1u) * {{ x_pitch }}u;
    }
{% endif %}

{% if ahead %}
    // The first packets. In the loop the next packets are in flight while the current ones are multiplied.
    uint4 next[{{ 4 * tiles }}];
    float4 next_x[{{ quads }}][4];
    {
        {{ take("next", "part" if split > 1 else "0u")|indent(8) }}
    }

{% endif %}
    wait_for_others();
{% if ahead %}
    {{ take_x("next_x", "part" if split > 1 else "0u")|indent(4) }}
{% endif %}
{% if x_rows == 1 %}
{% include "matmul/parts/preload_epilogue" %}
{% endif %}

    // One accumulator for each 32 columns of a step, because an MMA waits for the one before it.
    float4 sums[2][{{ quads }}][{{ tiles }}] = { { {float4(0.0f)} } };
{% if own_norm %}
    float squares_of_own[{{ quads }}] = {0.0f};
{% endif %}
    for (uint step = {{ "part" if split > 1 else "0u" }}; step < {{ steps }}u; step += {{ split }}u) {
        uint4 codes[{{ 4 * tiles }}];
        float4 xs[{{ quads }}][4];
{% if ahead %}
        const uint following = min(step + {{ split }}u, {{ steps - 1 }}u);
        #pragma unroll
        for (uint r = 0u; r < {{ 4 * tiles }}u; r++) {
            codes[r] = next[r];
        }
        #pragma unroll
        for (uint i = 0u; i < {{ 4 * quads }}u; i++) {
            xs[i / 4u][i % 4u] = next_x[i / 4u][i % 4u];
        }
        {{ take_x("next_x", "following")|indent(8) }}
        {{ take("next", "following")|indent(8) }}
{% else %}
        // Weights first: all loads are in flight before the first is used.
        {{ take("codes", "step")|indent(8) }}
        {{ take_x("xs", "step")|indent(8) }}
{% endif %}

        // Shuffles give each lane all 64 columns of its own row.
        #pragma unroll
        for (uint r = 0u; r < {{ 2 * tiles }}u; r++) {
            swap_packets(codes[2u * r], codes[2u * r + 1u], odd != 0u);
        }
        #pragma unroll
        for (uint p = 0u; p < 2u; p++) {
            float4 right[{{ quads }}][2];
            #pragma unroll
            for (uint i = 0u; i < {{ 2 * quads }}u; i++) {
                const uint q = i / 2u;
                float4 own = xs[q][2u * p + i % 2u];
{% if own_norm %}
                squares_of_own[q] += dot(own, own);
{% if own_norm.gain %}
                own *= {{ load }}(x_gain, step * 64u + p * 32u + quarter * 8u + i % 2u * 4u{{ bound }});
{% endif %}
{% endif %}
                right[q][i % 2u] = factor_part(own, odd != 0u);
            }
            #pragma unroll
            for (uint tile = 0u; tile < {{ tiles }}u; tile++) {
                float4 above[2];
                float4 below[2];
                {{ decoder }}_decode(codes[4u * tile + p], above);
                {{ decoder }}_decode(codes[4u * tile + 2u + p], below);
                #pragma unroll
                for (uint q = 0u; q < {{ quads }}u; q++) {
                    add_row_products(sums[p][q][tile], above, below, right[q], {{ "4u" if x_rows > 1 else "1u" }}, quarter);
                }
            }
        }
    }
{% if own_norm %}

    // Squares of a row of x, over its four lanes.
    #pragma unroll
    for (uint q = 0u; q < {{ quads }}u; q++) {
        squares_of_own[q] += simd_shuffle_xor(squares_of_own[q], ushort(1));
        squares_of_own[q] += simd_shuffle_xor(squares_of_own[q], ushort(8));
    }
{% endif %}
