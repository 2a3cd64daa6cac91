{# Writes the row's experts and weights to `own_routes`. Lane s has the s-th expert as `lane_expert`; further lanes have the first. #}
{% if ranked and scores == "softmax" %}
    float weight = exp(own_logits[lane_expert] - largest) / total;
{% elif scores == "sigmoid" %}
    float weight = sigmoid(own_logits[lane_expert]);
{% else %}
    const float largest = simd_max(own_logits[lane_expert]);
    float weight = exp(own_logits[lane_expert] - largest);
{% if not renormalize %}
    float total = 0.0f;
    for (uint expert = lane; expert < {{ candidates }}u; expert += 32u) {
        total += exp(own_logits[expert] - largest);
    }
    weight /= simd_sum(total);
{% endif %}
{% endif %}
{% if renormalize %}
    weight /= simd_sum(lane < {{ picked }}u ? weight : 0.0f){% if scores == "sigmoid" %} + {{ no_sum }}{% endif %};
{% endif %}
{% if factor != 1 %}
    weight *= {{ factor }};
{% endif %}
{% if scale %}
    weight *= scale[lane_expert];
{% endif %}
{% if shared %}
    // Shared experts follow.
    const bool is_chosen = lane < {{ picked }}u;
    lane_expert = is_chosen ? lane_expert : lane + {{ candidates - picked }}u;
    weight = is_chosen ? weight : {{ "sigmoid(own_logits[" ~ candidates ~ "u])" if gated else "1.0f" }};
{% endif %}
    if (lane < {{ chosen }}u) {
        own_routes[lane] = lane_expert;
        own_routes[{{ chosen }}u + lane] = as_type<uint>(weight);
    }
