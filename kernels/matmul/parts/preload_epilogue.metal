{# Loads epilogue operands early. #}
{% if add_squares %}

    // Epilogue operands of the first simdgroup, loaded early.
    const uint local_output = lane;
    const uint output = group * {{ group_outputs }}u + local_output;
    float before = 0.0f;
{% if add_squares.gain %}
    float own_gain = 0.0f;
{% endif %}
    if (simdgroup_id == 0u{{ " && " ~ own_exists if own_exists else "" }}) {
        before = y[output];
{% if add_squares.gain %}
        own_gain = gain[output];
{% endif %}
    }
{% endif %}
{% if norm and squares_count <= 32 %}

    // Squares of x, loaded early.
{% if squares_count < 32 %}
    const {{ squares_vector }} squared = lane < {{ squares_count }}u ? {{ squares_source }}[lane] : {{ squares_vector }}(0.0f);
{% else %}
    const {{ squares_vector }} squared = {{ squares_source }}[lane];
{% endif %}
{% endif %}
