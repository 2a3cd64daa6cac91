{# Sums a packet of x, `of_x`, as `total`: one number, or one for each half of the packet. #}
{% set of_total = "totals[t]" if total == "totals[t]" else "const " ~ ("float2 " if half_block_scales else "float ") ~ total %}
{% if half_block_scales %}
        float4 quarters = {{ of_x }}[0];
        float4 further_quarters = {{ of_x }}[{{ vectors // 2 }}];
        #pragma unroll
        for (uint v = 1u; v < {{ vectors // 2 }}u; v++) {
            quarters += {{ of_x }}[v];
            further_quarters += {{ of_x }}[v + {{ vectors // 2 }}u];
        }
        {{ of_total }} = float2(quarters.x + quarters.y + quarters.z + quarters.w,
            further_quarters.x + further_quarters.y + further_quarters.z + further_quarters.w);
{% else %}
        float4 quarters = {{ of_x }}[0];
        #pragma unroll
        for (uint v = 1u; v < {{ vectors }}u; v++) {
            quarters += {{ of_x }}[v];
        }
        {{ of_total }} = quarters.x + quarters.y + quarters.z + quarters.w;
{% endif %}
