{# Dot products over columns for several rows of x; each lane dequantizes its own packets of a row of W. #}
{% set begin = "part * 32u + lane" if split > 1 else "lane" %}
{% set in_group = " / " ~ per_group ~ "u" if per_group > 1 else "" %}
    wait_for_others();

    float sums[{{ x_rows }}][{{ rows_per_simdgroup }}] = { {0.0f} };
{% if own_norm %}
    float squared[{{ x_rows }}] = {0.0f};
{% endif %}
    for (uint packet = {{ begin }}; packet < {{ packets }}u; packet += {{ 32 * split }}u) {
        {{ packet_type }} codes[{{ rows_per_simdgroup }}];
{% if scaled %}
        {{ scale_type }} scales[{{ rows_per_simdgroup }}];
{% endif %}
        // Weights first: all loads are in flight before the first is used.
        #pragma unroll
        for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
{% if ragged %}
            // Rows past the last repeat it.
            const uint weight_row = min(first + r, {{ outputs - 1 }}u);
{% else %}
            const uint weight_row = first + r;
{% endif %}
{% if packed %}
            codes[r] = {{ loader }}_at(weight_{{ planes[0].name }}, weight_row * {{ stride }}u + packet);
{% else %}
            codes[r] = weight_{{ planes[0].name }}[weight_row * {{ stride }}u + packet];
{% endif %}
{% if nested %}
            scales[r] = {{ widened }}(weight_scales, weight_row * {{ stride }}u + packet);
{% elif scaled %}
            scales[r] = {{ widened }}(weight_scales[weight_row * {{ groups }}u + packet{{ in_group }}]);
{% endif %}
        }

        // The part of x that these packets are multiplied by.
        float4 xs[{{ x_rows }}][{{ vectors }}];
{% if offset %}
        // A group's offset is multiplied by the sum of x, which is the same for all rows of W.
        {{ "float2" if half_block_scales else "float" }} totals[{{ x_rows }}];
{% endif %}
        #pragma unroll
        for (uint t = 0u; t < {{ x_rows }}u; t++) {
            device const float* row_x = x + (first_row + {{ row_of_t }}) * {{ x_pitch }}u;
            #pragma unroll
            for (uint v = 0u; v < {{ vectors }}u; v++) {
                xs[t][v] = {{ load }}(row_x, packet * {{ columns }}u + 4u * v{{ bound }});
{% if own_norm %}
                squared[t] += dot(xs[t][v], xs[t][v]);
{% if own_norm.gain %}
                xs[t][v] *= {{ load }}(x_gain, packet * {{ columns }}u + 4u * v{{ bound }});
{% endif %}
{% endif %}
            }
{% if offset %}
{% set of_x = "xs[t]" %}
{% set total = "totals[t]" %}
{% filter indent(4, first=true) %}
{% include "matmul/parts/sum_of_x" %}
{% endfilter %}

{% endif %}
        }

        #pragma unroll
        for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
            float4 weights[{{ vectors }}];
            {{ decoder }}_decode(codes[r], weights);
            #pragma unroll
            for (uint t = 0u; t < {{ x_rows }}u; t++) {
{% if half_block_scales %}
                // The packet's halves have separate scales.
                float sum = 0.0f;
                float further = 0.0f;
                #pragma unroll
                for (uint v = 0u; v < {{ vectors // 2 }}u; v++) {
                    sum += dot(weights[v], xs[t][v]);
                    further += dot(weights[v + {{ vectors // 2 }}u], xs[t][v + {{ vectors // 2 }}u]);
                }
                sums[t][r] += scales[r].x * sum + scales[r].y * further{{ " + scales[r].z * totals[t].x + scales[r].w * totals[t].y" if offset else "" }};
{% else %}
                float sum = 0.0f;
                #pragma unroll
                for (uint v = 0u; v < {{ vectors }}u; v++) {
                    sum += dot(weights[v], xs[t][v]);
                }
{% if offset %}
                sums[t][r] += scales[r].x * sum + scales[r].y * totals[t];
{% else %}
                sums[t][r] += {{ "scales[r] * sum" if scaled else "sum" }};
{% endif %}
{% endif %}
            }
        }
    }
