{# Adds a packet of a row, times the row's element of x, to the sums of its columns. #}
{% if scaled %}
        const {{ scale_type }} factor = value * scale;
{% endif %}
        #pragma unroll
        for (uint v = 0u; v < {{ vectors }}u; v++) {
{% if offset and half_block_scales %}
            // The packet's halves have separate scales and offsets.
            {{ sums }}[v] += v < {{ vectors // 2 }}u ? weights[v] * factor.x + factor.z : weights[v] * factor.y + factor.w;
{% elif offset %}
            {{ sums }}[v] += weights[v] * factor.x + factor.y;
{% elif half_block_scales %}
            // The packet's halves have separate scales.
            {{ sums }}[v] += weights[v] * (v < {{ vectors // 2 }}u ? factor.x : factor.y);
{% elif scaled %}
            {{ sums }}[v] += weights[v] * factor;
{% else %}
            {{ sums }}[v] += weights[v] * value;
{% endif %}
        }
