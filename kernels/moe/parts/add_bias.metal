{# Adds the biases of a row's experts to an output. #}
        float biased = 0.0f;
        for (uint slot = 0u; slot < {{ chosen }}u; slot++) {
            const float weight = as_type<float>(own_routes[{{ chosen }}u + slot]);
            biased += weight * bias[own_routes[slot] * {{ outputs }}u + output];
        }
