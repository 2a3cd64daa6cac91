{# Adds the products of packets of a head's matrix and their part of x to the sums of rows. #}
        float4 xs[{{ vectors }}];
        #pragma unroll
        for (uint v = 0u; v < {{ vectors }}u; v++) {
            xs[v] = {{ load }}(own_x, packet * {{ columns }}u + 4u * v{{ bound }});
        }
{% include "moe/parts/products" %}
