{# The weights of the row's experts, of which lane s has the s-th as `own`, and lanes past those that were chosen the first, to `own_routes`. #}
{% if ranked and scores == "softmax" %}
    float weight = exp(own_logits[own] - largest) / total;
{% elif scores == "sigmoid" %}
    float weight = sigmoid(own_logits[own]);
{% else %}
    const float largest = simd_max(own_logits[own]);
    float weight = exp(own_logits[own] - largest);
{% if not shares %}
    float total = 0.0f;
    for (uint expert = lane; expert < {{ candidates }}u; expert += 32u) {
        total += exp(own_logits[expert] - largest);
    }
    weight /= simd_sum(total);
{% endif %}
{% endif %}
{% if shares %}
    weight /= simd_sum(lane < {{ picked }}u ? weight : 0.0f){% if scores == "sigmoid" %} + {{ no_sum }}{% endif %};
{% endif %}
{% if factor != 1 %}
    weight *= {{ factor }};
{% endif %}
{% if scale %}
    weight *= scale[own];
{% endif %}
{% if shared %}
    // Those that every row has follow.
    const bool is_chosen = lane < {{ picked }}u;
    own = is_chosen ? own : lane + {{ candidates - picked }}u;
    weight = is_chosen ? weight : {{ "sigmoid(own_logits[" ~ candidates ~ "u])" if gated else "1.0f" }};
{% endif %}
    if (lane < {{ chosen }}u) {
        own_routes[lane] = own;
        own_routes[{{ chosen }}u + lane] = as_type<uint>(weight);
    }
