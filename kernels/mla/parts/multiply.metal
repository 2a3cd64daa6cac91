{# What packets of a head's matrix and the part of x that they meet add to the sums of rows. #}
        float4 xs[{{ vectors }}];
        #pragma unroll
        for (uint v = 0u; v < {{ vectors }}u; v++) {
            xs[v] = {{ load }}(own_x, packet * {{ columns }}u + 4u * v{{ bound }});
        }
{% include "moe/parts/products" %}
