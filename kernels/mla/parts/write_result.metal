{# Sums rows of a head's matrix over lanes, and writes y. #}
    float own_sum = 0.0f;
    #pragma unroll
    for (uint r = 0u; r < {{ each }}u; r++) {
        float sum = sums[r];
{% for distance in within %}
        sum += simd_shuffle_xor(sum, ushort({{ distance }}));
{% endfor %}
{% if each > 1 %}
        own_sum = lane_in_row == r ? sum : own_sum;
{% else %}
        own_sum = sum;
{% endif %}
    }
    const uint output = first + {{ at_once }}u * lane_in_row;
{% set exists = " && output < " ~ rows ~ "u" if ragged else "" %}
{% if together > 1 %}
    const uint row_of_y = group.z * {{ together }}u + t;
    if (lane_in_row < {{ each }}u{{ exists }} && row_of_y < args.rows) {
        y[(row_of_y * {{ heads }}u + group.y) * {{ rows }}u + output] = own_sum;
    }
{% else %}
    if (lane_in_row < {{ each }}u{{ exists }}) {
        y[(group.z * {{ heads }}u + group.y) * {{ rows }}u + output] = own_sum;
    }
{% endif %}
