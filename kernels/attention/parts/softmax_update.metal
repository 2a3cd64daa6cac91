{# Converts a score of the tile to a softmax weight; `live` says whether the row attends to the position. #}
{% if softcap %}
            score = live ? softcap(score * {{ scale }}, {{ softcap }}) : -1.0e38f;
{% else %}
            score = live ? score * {{ scale }} : -1.0e38f;
{% endif %}
            const float highest = max(maximum[i], simd_max(score));
            const float rescale = exp(maximum[i] - highest);
            const float weight = live ? exp(score - highest) : 0.0f;
            total[i] = total[i] * rescale + simd_sum(weight);
            maximum[i] = highest;
            scores[r * 36u + lane] = weight;
            if (lane == 0u) {
                decay[r * 9u] = rescale;
            }
