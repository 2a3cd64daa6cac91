{# Adds the products of packets and their part of x to the sums of rows. #}
{% if offset %}

        // A group's offset is multiplied by the sum of x, which is the same for all rows.
{% set of_x = "xs" %}
{% set total = "total" %}
{% include "matmul/parts/sum_of_x" %}
{% endif %}

        #pragma unroll
        for (uint r = 0u; r < {{ rows_per_simdgroup }}u; r++) {
            float4 weights[{{ vectors }}];
            {{ decoder }}_decode(codes[r], weights);
{% if half_block_scales %}
            // The packet's halves have separate scales.
            float sum = 0.0f;
            float further = 0.0f;
            #pragma unroll
            for (uint v = 0u; v < {{ vectors // 2 }}u; v++) {
                sum += dot(weights[v], xs[v]);
                further += dot(weights[v + {{ vectors // 2 }}u], xs[v + {{ vectors // 2 }}u]);
            }
            sums[r] += {{ times }}(scales[r].x * sum + scales[r].y * further{{ " + scales[r].z * total.x + scales[r].w * total.y" if offset else "" }});
{% else %}
            float sum = 0.0f;
            #pragma unroll
            for (uint v = 0u; v < {{ vectors }}u; v++) {
                sum += dot(weights[v], xs[v]);
            }
{% if offset %}
            sums[r] += {{ times }}(scales[r].x * sum + scales[r].y * total);
{% else %}
            sums[r] += {{ times }}{{ "scales[r] * sum" if scaled else "sum" }};
{% endif %}
{% endif %}
        }
