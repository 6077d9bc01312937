// The fit behind cost_model.h.
#include "scheduler/cost_model.h"

namespace treadle {

namespace {

constexpr double time_ns_max = 3.6e12;  // an hour: no pass, a clock that jumped
constexpr double forgetting = 1.0 - 1.0 / 256;
constexpr double leverage_known = 0.1;  // below, a pass is of a kind that was seen often enough to judge it
constexpr double margin_first = 1.25;   // until there are ratios
constexpr int ratios_first = 16;
constexpr double margin_max = 4;
constexpr int ratios_above = 40;  // one of so many may exceed the margin
constexpr double ratio_max = 1e6;

constexpr double noise = 0.05;       // of a pass's time, which an undetermined coefficient is weighed against
constexpr double belief_spread = 2;  // standard deviation of a first belief, relative to it
constexpr double learned_spread = 0.2;  // of one that the data gave
constexpr double belief_floor = 0.1;    // of the first belief: a coefficient of 0 must find its way back
constexpr double determined_share = 0.75;
constexpr int32_t determined_passes = 8;

constexpr double spread_first = 0.1, spread_min = 0.01;
constexpr double disturbed_spreads = 3, streak_spreads = 4, streak_residual_min = 0.15;

// What the model believes before it knows: nanoseconds per pass, row, token and token * context, in those of one token.
constexpr std::array<double, CostModel::coefficient_count> first_belief = {8, 1, 1, 1.0 / 4096};

using Vector = std::array<double, CostModel::coefficient_count>;
using Matrix = std::array<Vector, CostModel::coefficient_count>;
constexpr int size = CostModel::coefficient_count;
constexpr unsigned all_free = (1u << size) - 1;

double absolute(double x) { return x < 0 ? -x : x; }
double larger(double a, double b) { return a > b ? a : b; }
double smaller(double a, double b) { return a < b ? a : b; }

double dot(const Vector& a, const Vector& b) {
    double sum = 0;
    for (int i = 0; i < size; i++) sum += a[i] * b[i];
    return sum;
}

Vector features_of(const PassShape& shape) {
    const double rows = shape.rows;
    const auto tokens = static_cast<double>(shape.tokens);
    return {1, rows, tokens > rows ? tokens - rows : 0, static_cast<double>(shape.token_context)};
}

bool possible(const PassShape& shape) {
    constexpr int64_t token_context_max = int64_t{1} << 56;
    return shape.rows >= 0 && shape.tokens >= 1 && shape.tokens >= shape.rows && shape.token_context >= 0 &&
           shape.tokens <= INT32_MAX && shape.token_context <= token_context_max;
}

int64_t to_ns(double ns) { return ns >= 9e18 ? INT64_MAX : static_cast<int64_t>(ns); }

// Solves matrix * x = right for the coordinates in `free`; the others are 0. The matrix is symmetric and positive definite, so
// that elimination needs no pivoting, and its accuracy doesn't depend on how the coordinates are scaled.
Vector solve_for(Matrix matrix, Vector right, unsigned free) {
    for (int i = 0; i < size; i++) {
        if (free >> i & 1) continue;
        for (int j = 0; j < size; j++) matrix[i][j] = matrix[j][i] = 0;
        matrix[i][i] = 1;
        right[i] = 0;
    }
    for (int pivot = 0; pivot < size; pivot++) {
        for (int row = pivot + 1; row < size; row++) {
            const double factor = matrix[row][pivot] / matrix[pivot][pivot];
            for (int j = pivot; j < size; j++) matrix[row][j] -= factor * matrix[pivot][j];
            right[row] -= factor * right[pivot];
        }
    }
    Vector x{};
    for (int row = size - 1; row >= 0; row--) {
        double sum = right[row];
        for (int j = row + 1; j < size; j++) sum -= matrix[row][j] * x[j];
        x[row] = sum / matrix[row][row];
    }
    return x;
}

bool none_negative(const Vector& x) {
    for (const double value : x)
        if (!(value >= 0)) return false;
    return true;
}

// Minimises x' matrix x / 2 - right' x over x >= 0, exactly: of the 16 ways to hold coordinates at 0, the best that is allowed.
// The first is all free; where it is allowed, it is the best.
Vector solve_bounded(const Matrix& matrix, const Vector& right) {
    Vector best{};
    double best_value = 0;  // of x = 0
    for (unsigned free = all_free; free > 0; free--) {
        const Vector x = solve_for(matrix, right, free);
        if (!none_negative(x)) continue;
        const double value = -dot(right, x) / 2;
        if (value < best_value) {
            best = x;
            best_value = value;
        }
        if (free == all_free) break;
    }
    return best;
}

}  // namespace

void PassShape::add(int32_t first, int32_t count, bool logits) {
    const int64_t n = count;
    rows += logits ? 1 : 0;
    tokens += n;
    token_context += n * first + n * (n + 1) / 2;
}

void CostModel::add(const PassShape& shape, int64_t ns) {
    const auto measured = static_cast<double>(ns);
    if (!possible(shape) || ns <= 0 || measured > time_ns_max) {
        dropped_++;
        return;
    }
    const Vector features = features_of(shape);
    if (passes_ == 0) {  // whatever it was, the beliefs explain it
        belief_unit_ = measured / dot(first_belief, features);
        for (int i = 0; i < size; i++) coefficients_[i] = beliefs_[i] = belief_unit_ * first_belief[i];
        spread_ = spread_first;
        margin_ = margin_first;
        const Vector weights = belief_weights();
        for (int i = 0; i < size; i++) inverse_[i][i] = 1 / weights[i];
    }

    double predicted = dot(coefficients_, features);
    double time = larger(measured, predicted);  // both slow and fast outliers have residuals below 1
    double residual = (measured - predicted) / time;
    Vector scaled{};
    for (int i = 0; i < size; i++) scaled[i] = features[i] / time;
    double leverage = 0;
    for (int i = 0; i < size; i++) leverage += scaled[i] * dot(inverse_[i], scaled);
    const bool known = leverage < leverage_known;

    if (passes_ > 0) {
        const double rate = larger(1.0 / 64, 1.0 / static_cast<double>(passes_));
        error_ += rate * (absolute(residual) - error_);
    }
    double weight = 1;
    if (known) {
        const double ratio = smaller(measured / larger(predicted, 1.0 / ratio_max), ratio_max);
        observe_ratio(ratio);
        if (speed_changed(residual, ratio)) {
            predicted = dot(coefficients_, features);
            time = larger(measured, predicted);
            residual = (measured - predicted) / time;
            for (int i = 0; i < size; i++) scaled[i] = features[i] / time;
        }
        const double bound = disturbed_spreads * larger(spread_, spread_min);
        weight = absolute(residual) > bound ? bound / absolute(residual) : 1;
        spread_ += (smaller(absolute(residual), bound) - spread_) / 64;
    }
    passes_++;
    accumulate(scaled, measured / time, weight);
    solve();
    move_beliefs(features);
}

// Counts passes that are far off on one side; after eight of them, the machine is another one.
bool CostModel::speed_changed(double residual, double ratio) {
    const double bound = larger(streak_spreads * spread_, streak_residual_min);
    if (absolute(residual) < bound) {
        streak_count_ = 0;
        return false;
    }
    if (streak_count_ > 0 && (streak_[0] > 1) != (ratio > 1)) streak_count_ = 0;
    int place = streak_count_++;  // kept in order, so that the middle is the median
    const bool slower = ratio > 1;
    while (place > 0 && (slower ? streak_[place - 1] > ratio : streak_[place - 1] < ratio)) {
        streak_[place] = streak_[place - 1];
        place--;
    }
    streak_[place] = ratio;
    if (streak_count_ < streak_length) return false;
    streak_count_ = 0;
    rescale((streak_[streak_length / 2 - 1] + streak_[streak_length / 2]) / 2);
    return true;
}

// As if all passes so far had taken `ratio` times as long. They count half from now on.
void CostModel::rescale(double ratio) {
    for (int i = 0; i < size; i++) {
        coefficients_[i] *= ratio;
        beliefs_[i] *= ratio;
        evidence_[i] *= 0.5 / ratio;
        for (double& value : information_[i]) value *= 0.5 / (ratio * ratio);
    }
    belief_unit_ *= ratio;
    ratio_count_ = ratio_next_ = 0;
    margin_ = margin_first;
}

// The margin is the ratio that one in forty of the last 256 exceeds.
void CostModel::observe_ratio(double ratio) {
    ratios_[ratio_next_] = static_cast<float>(ratio);
    ratio_next_ = (ratio_next_ + 1) % ratios_kept;
    if (ratio_count_ < ratios_kept) ratio_count_++;
    if (ratio_count_ < ratios_first) return;

    std::array<float, ratios_kept / ratios_above + 1> highest{};  // descending
    const int rank = ratio_count_ / ratios_above;
    for (int i = 0; i < ratio_count_; i++) {
        const float candidate = ratios_[i];
        if (candidate <= highest[rank]) continue;
        int place = rank;
        while (place > 0 && highest[place - 1] < candidate) {
            highest[place] = highest[place - 1];
            place--;
        }
        highest[place] = candidate;
    }
    margin_ = smaller(larger(highest[rank], 1), margin_max);
}

// How much a belief counts: as one observation of it with its spread would, beside passes with `noise`.
CostModel::Vector CostModel::belief_weights() const {
    Vector weights{};
    for (int i = 0; i < size; i++) {
        const double value = larger(beliefs_[i], belief_floor * belief_unit_ * first_belief[i]);
        const double spread = value * (determined_[i] < determined_passes ? belief_spread : learned_spread);
        weights[i] = noise / spread * (noise / spread);
    }
    return weights;
}

void CostModel::accumulate(const Vector& scaled, double target, double weight) {
    const Vector beliefs = belief_weights();
    for (int i = 0; i < size; i++) {
        for (int j = 0; j < size; j++)
            information_[i][j] = forgetting * information_[i][j] + weight * scaled[i] * scaled[j];
        evidence_[i] = forgetting * evidence_[i] + weight * scaled[i] * target;
    }
    for (int i = 0; i < size; i++) {
        if (information_[i][i] >= 1e-9 * beliefs[i]) continue;
        for (int j = 0; j < size; j++) information_[i][j] = information_[j][i] = 0;  // before it is denormal
        evidence_[i] = 0;
    }
}

void CostModel::solve() {
    const Vector weights = belief_weights();
    Matrix matrix = information_;
    Vector right = evidence_;
    for (int i = 0; i < size; i++) {
        matrix[i][i] += weights[i];
        right[i] += weights[i] * beliefs_[i];
    }
    coefficients_ = solve_bounded(matrix, right);
    for (int i = 0; i < size; i++) {
        Vector unit{};
        unit[i] = 1;
        inverse_[i] = solve_for(matrix, unit, all_free);
    }
}

// A coefficient is determined where the data leave less than a quarter of its belief's variance; then the belief follows it.
// Until the first time it follows the speed of the machine.
void CostModel::move_beliefs(const Vector& features) {
    const Vector weights = belief_weights();
    const double unit = dot(coefficients_, features) / dot(first_belief, features);
    belief_unit_ += (unit - belief_unit_) / 4;
    belief_unit_ = larger(belief_unit_, 1e-6);
    for (int i = 0; i < size; i++) {
        const double share = 1 - weights[i] * inverse_[i][i];
        if (share > determined_share) {
            if (determined_[i] < determined_passes) determined_[i]++;
            beliefs_[i] += (coefficients_[i] - beliefs_[i]) / 8;
        } else if (determined_[i] == 0) {
            beliefs_[i] = belief_unit_ * first_belief[i];
        }
    }
}

int64_t CostModel::predict_ns(const PassShape& shape) const {
    return possible(shape) ? to_ns(dot(coefficients_, features_of(shape))) : 0;
}

int64_t CostModel::predict_high_ns(const PassShape& shape) const {
    return possible(shape) ? to_ns(dot(coefficients_, features_of(shape)) * margin_) : 0;
}

int32_t CostModel::largest_chunk(const PassShape& base, int32_t context, int32_t most,
                                 int64_t budget_ns) const {
    const auto fits = [&](int32_t count) {
        PassShape shape = base;
        shape.add(context, count, false);
        return predict_high_ns(shape) <= budget_ns;
    };
    if (context < 0 || most <= 0 || !fits(0)) return 0;
    int32_t low = 0, high = most;  // low fits; more tokens never take less time
    while (low < high) {
        const int32_t middle = high - (high - low) / 2;
        if (fits(middle))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

}  // namespace treadle
