// The cost model of passes, on simulated machines: does it find their coefficients, through noise, outliers, throttling and
// workloads that tell nothing about a coefficient?
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "scheduler/cost_model.h"

using namespace treadle;

namespace {

// A machine with known costs, in nanoseconds. Passes take up to 12% longer than they should, as real ones do.
struct Machine {
    double per_pass = 4e6, per_row = 4e5, per_token = 8e5, per_token_context = 60;
    double slowdown = 1;
    double noise = 0.04;
    double outliers = 0;  // share of passes that another program makes ten times as long
    std::mt19937_64 random{1};

    double uniform() { return static_cast<double>(random() >> 11) * 0x1p-53; }
    double exact(const PassShape& shape) const {
        const double extra = static_cast<double>(shape.tokens) - shape.rows;
        return slowdown * (per_pass + per_row * shape.rows + per_token * extra +
                           per_token_context * static_cast<double>(shape.token_context));
    }
    int64_t run(const PassShape& shape) {
        const double skewed = 1 + noise * (uniform() + uniform() + (uniform() < 0.1 ? 1 : 0) - 1.1);
        const double disturbed = uniform() < outliers ? 10 : 1;
        return static_cast<int64_t>(exact(shape) * skewed * disturbed);
    }
};

PassShape decode(int32_t rows, int32_t context) {
    PassShape shape;
    for (int32_t i = 0; i < rows; i++) shape.add(context + 37 * i, 1, true);
    return shape;
}

PassShape with_chunk(PassShape base, int32_t first, int32_t count) {
    base.add(first, count, false);
    return base;
}

// What an engine under a chat workload runs: decodes of a changing batch, and chunks now and then.
PassShape mixed(Machine& machine) {
    const auto rows = static_cast<int32_t>(machine.random() % 12);
    const auto context = static_cast<int32_t>(50 + machine.random() % 3000);
    if (rows > 0 && machine.random() % 3 != 0) return decode(rows, context);
    return with_chunk(decode(rows, context), static_cast<int32_t>(machine.random() % 4096),
                      static_cast<int32_t>(16 + machine.random() % 240));
}

void train(CostModel& model, Machine& machine, int passes) {
    for (int i = 0; i < passes; i++) {
        const PassShape shape = mixed(machine);
        model.add(shape, machine.run(shape));
    }
}

// Greatest relative error of predictions over shapes that a mixed workload has.
double worst_error(const CostModel& model, const Machine& machine) {
    double worst = 0;
    for (const int32_t rows : {1, 4, 11}) {
        for (const int32_t context : {100, 1500, 3000}) {
            for (const int32_t chunk : {0, 16, 128, 256}) {
                const PassShape shape = with_chunk(decode(rows, context), context, chunk);
                const double exact = machine.exact(shape);
                const auto predicted = static_cast<double>(model.predict_ns(shape));
                worst = std::max(worst, std::fabs(predicted - exact) / exact);
            }
        }
    }
    return worst;
}

bool all_finite(const CostModel& model) {
    for (const double value : model.coefficients())
        if (!std::isfinite(value) || value < 0) return false;
    return std::isfinite(model.error()) && std::isfinite(model.margin()) && model.margin() >= 1;
}

}  // namespace

TEST_CASE("a shape counts tokens, rows and the positions they attend to") {
    PassShape shape;
    shape.add(0, 3, false);  // attend to 1, 2, 3
    CHECK(shape.rows == 0);
    CHECK(shape.tokens == 3);
    CHECK(shape.token_context == 6);
    shape.add(10, 1, true);
    CHECK(shape.rows == 1);
    CHECK(shape.tokens == 4);
    CHECK(shape.token_context == 17);
    PassShape whole, parts;
    whole.add(100, 50, true);
    parts.add(100, 20, false);
    parts.add(120, 30, true);
    CHECK(whole.token_context == parts.token_context);
}

TEST_CASE("the model finds the coefficients of a machine without noise") {
    Machine machine;
    machine.noise = 0;
    CostModel model;
    CHECK_FALSE(model.ready());
    CHECK(model.predict_ns(decode(1, 1)) == 0);
    train(model, machine, 600);
    CHECK(model.ready());
    const auto& found = model.coefficients();
    CHECK(found[0] == doctest::Approx(machine.per_pass).epsilon(0.01));
    CHECK(found[1] == doctest::Approx(machine.per_row).epsilon(0.01));
    CHECK(found[2] == doctest::Approx(machine.per_token).epsilon(0.01));
    CHECK(found[3] == doctest::Approx(machine.per_token_context).epsilon(0.02));
    CHECK(model.error() < 0.005);
    CHECK(worst_error(model, machine) < 0.01);
}

TEST_CASE("the model predicts through noise and outliers, and its error goes down") {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        CAPTURE(seed);
        Machine machine;
        machine.random.seed(seed);
        machine.outliers = 0.02;
        CostModel model;
        double early = 0;
        for (int i = 0; i < 12; i++) {
            const PassShape shape = mixed(machine);
            if (i > 0) {
                const double exact = machine.exact(shape);
                early += std::fabs(static_cast<double>(model.predict_ns(shape)) - exact) / exact / 11;
            }
            model.add(shape, machine.run(shape));
        }
        train(model, machine, 800);
        CHECK(worst_error(model, machine) < 0.08);
        CHECK(worst_error(model, machine) < early);
        CHECK(model.error() < 0.12);  // outliers count 0.9 each
    }
}

TEST_CASE("the prediction with its margin holds for nearly all passes, and not by much") {
    Machine machine;
    machine.noise = 0.08;
    CostModel model;
    train(model, machine, 1000);
    int above = 0;
    constexpr int passes = 4000;
    double margin = 0;
    for (int i = 0; i < passes; i++) {
        const PassShape shape = mixed(machine);
        const int64_t ns = machine.run(shape);
        above += ns > model.predict_high_ns(shape);
        margin += model.margin() / passes;
        model.add(shape, ns);
    }
    CHECK(above < passes * 5 / 100);
    CHECK(above > passes / 1000);
    CHECK(margin < 1.25);
}

TEST_CASE("a machine that gets slower or faster is followed at once, chunks included") {
    for (const double slowdown : {2.0, 0.4}) {
        CAPTURE(slowdown);
        Machine machine;
        CostModel model;
        train(model, machine, 500);
        machine.slowdown = slowdown;
        // The change is seen in decodes only; chunks are slower too, though none ran.
        for (int i = 0; i < 24; i++) {
            const PassShape shape = decode(6, 900 + i);
            model.add(shape, machine.run(shape));
        }
        CHECK(worst_error(model, machine) < 0.15);
        train(model, machine, 300);
        CHECK(worst_error(model, machine) < 0.06);
        CHECK(model.margin() < 1.2);
    }
}

TEST_CASE("one slow pass changes nothing, wherever it comes") {
    Machine machine;
    CostModel model;
    train(model, machine, 300);
    const PassShape shape = decode(6, 1000);
    const auto before = static_cast<double>(model.predict_ns(shape));
    for (int i = 0; i < 3; i++) model.add(shape, static_cast<int64_t>(10 * machine.exact(shape)));
    CHECK(static_cast<double>(model.predict_ns(shape)) < 1.06 * before);
    for (int i = 0; i < 3; i++) model.add(shape, 1000);
    CHECK(static_cast<double>(model.predict_ns(shape)) > 0.94 * before);
}

TEST_CASE("decodes alone leave the cost of a chunk at a sensible belief") {
    for (const int32_t rows : {1, 8}) {
        for (const double per_row : {0.0, 4e5, 2e6}) {
            CAPTURE(rows);
            CAPTURE(per_row);
            Machine machine;
            machine.per_row = per_row;
            CostModel model;
            for (int i = 0; i < 20000; i++) {  // far beyond the memory, so that a blow-up would show
                const PassShape shape = decode(rows, 100 + i % 2000);
                model.add(shape, machine.run(shape));
            }
            CHECK(all_finite(model));
            const PassShape base = decode(rows, 1000);
            const auto alone = static_cast<double>(model.predict_ns(base));
            CHECK(alone == doctest::Approx(machine.exact(base)).epsilon(0.04));
            // Tokens cost something, and not absurdly much: 16 of them add between a third and three decodes.
            const auto chunk = static_cast<double>(model.predict_ns(with_chunk(base, 0, 16)));
            CHECK(chunk > 1.33 * alone);
            CHECK(chunk < 4 * alone);
            // The first chunks set it right.
            for (int i = 0; i < 4; i++) {
                const PassShape shape = with_chunk(base, 16 * i, 16);
                model.add(shape, machine.run(shape));
            }
            const PassShape next = with_chunk(base, 64, 32);
            CHECK(static_cast<double>(model.predict_ns(next)) ==
                  doctest::Approx(machine.exact(next)).epsilon(0.12));
        }
    }
}

TEST_CASE("what chunks cost is remembered through any number of decodes") {
    Machine machine;
    CostModel model;
    train(model, machine, 400);
    for (int i = 0; i < 100000; i++) {
        const PassShape shape = decode(4, 500 + i % 100);
        model.add(shape, machine.run(shape));
    }
    CHECK(all_finite(model));
    const PassShape shape = with_chunk(decode(4, 550), 0, 128);
    CHECK(static_cast<double>(model.predict_ns(shape)) == doctest::Approx(machine.exact(shape)).epsilon(0.1));
    // A first chunk after that which is disturbed is not the last word.
    model.add(shape, static_cast<int64_t>(10 * machine.exact(shape)));
    CHECK(static_cast<double>(model.predict_ns(shape)) < 3 * machine.exact(shape));
    for (int i = 0; i < 3; i++) model.add(shape, machine.run(shape));
    CHECK(static_cast<double>(model.predict_ns(shape)) ==
          doctest::Approx(machine.exact(shape)).epsilon(0.15));
}

TEST_CASE("a constant workload of any kind stays finite and right") {
    for (const PassShape& shape : {decode(1, 1), decode(64, 4000), with_chunk({}, 0, 512),
                                   with_chunk({}, 1 << 18, 65536), with_chunk(decode(3, 7), 9, 16)}) {
        Machine machine;
        CostModel model;
        for (int i = 0; i < 5000; i++) model.add(shape, machine.run(shape));
        CHECK(all_finite(model));
        CHECK(static_cast<double>(model.predict_ns(shape)) ==
              doctest::Approx(machine.exact(shape)).epsilon(0.03));
    }
}

TEST_CASE("clock jumps and impossible shapes are dropped, and no input breaks the model") {
    Machine machine;
    CostModel model;
    train(model, machine, 100);
    const auto before = model.coefficients();
    const int64_t passes = model.passes();
    const PassShape shape = decode(4, 100);
    for (const int64_t ns : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min(),
                             std::numeric_limits<int64_t>::max(), int64_t{4'000'000'000'000}})
        model.add(shape, ns);
    for (const PassShape& wrong :
         {PassShape{0, 0, 0}, PassShape{-1, 1, 1}, PassShape{2, 1, 1}, PassShape{1, 1, -5},
          PassShape{1, INT64_MAX, 1}, PassShape{1, 1, INT64_MAX}}) {
        model.add(wrong, 1000);
        CHECK(model.predict_ns(wrong) == 0);
    }
    CHECK(model.coefficients() == before);
    CHECK(model.passes() == passes);
    CHECK(model.dropped() == 11);

    for (uint64_t seed = 0; seed < 30; seed++) {  // times and shapes without sense
        CostModel mad;
        std::mt19937_64 random(seed);
        for (int i = 0; i < 3000; i++) {
            PassShape any;
            any.tokens = static_cast<int64_t>(random() >> (33 + random() % 30));
            any.rows = static_cast<int32_t>(static_cast<uint64_t>(any.tokens) >> (random() % 32));
            any.token_context = static_cast<int64_t>(random() >> (8 + random() % 50));
            mad.add(any, static_cast<int64_t>(random() >> (22 + random() % 42)));
            REQUIRE(all_finite(mad));
            CHECK(mad.predict_ns(any) >= 0);
        }
    }
}

TEST_CASE("a first pass that was disturbed is overcome") {
    Machine machine;
    CostModel model;
    model.add(decode(4, 10), 5'000'000'000);
    for (int i = 0; i < 30; i++) {
        const PassShape shape = decode(4, 11 + i);
        model.add(shape, machine.run(shape));
    }
    const PassShape shape = decode(4, 45);
    CHECK(static_cast<double>(model.predict_ns(shape)) ==
          doctest::Approx(machine.exact(shape)).epsilon(0.06));
    const PassShape chunk = with_chunk(shape, 0, 16);
    CHECK(static_cast<double>(model.predict_ns(chunk)) < 4 * machine.exact(shape));
}

TEST_CASE("the largest chunk is the largest that fits by the prediction") {
    Machine machine;
    CostModel model;
    train(model, machine, 500);
    const PassShape base = decode(8, 700);
    const int64_t alone = model.predict_high_ns(base);
    CHECK(model.largest_chunk(base, 0, 512, alone - 1) == 0);
    CHECK(model.largest_chunk(base, 0, 512, 0) == 0);
    CHECK(model.largest_chunk(base, 0, 512, -5) == 0);
    CHECK(model.largest_chunk(base, 0, 0, INT64_MAX) == 0);
    CHECK(model.largest_chunk(base, -1, 512, INT64_MAX) == 0);
    CHECK(model.largest_chunk(base, 0, 512, INT64_MAX) == 512);
    int32_t before = 0;
    for (int i = 1; i < 60; i++) {
        const int64_t budget = alone * (10 + i) / 10;
        for (const int32_t context : {0, 5000, 60000}) {
            const int32_t chunk = model.largest_chunk(base, context, 512, budget);
            CHECK(model.predict_high_ns(with_chunk(base, context, chunk)) <= budget);
            if (chunk < 512) CHECK(model.predict_high_ns(with_chunk(base, context, chunk + 1)) > budget);
            if (context == 0) {
                CHECK(chunk >= before);
                before = chunk;
            }
        }
        CHECK(model.largest_chunk(base, 60000, 512, budget) <= model.largest_chunk(base, 0, 512, budget));
    }
    CHECK(before > 16);
    CHECK(model.largest_chunk({}, 0, 512, alone) > 0);  // an idle engine
}

TEST_CASE("chunks chosen by the model keep passes within a target, while prompts get on") {
    // Eight chats, and prompts of 8,000 tokens one after another. On the second machine weights are read once per pass, and up
    // to 20 tokens are computed meanwhile: the model's straight line is only near the truth.
    for (const bool roofline : {false, true}) {
        for (const double target_times : {2.5, 4.0, 8.0}) {
            CAPTURE(roofline);
            CAPTURE(target_times);
            Machine machine;
            machine.outliers = 0.002;
            machine.per_token = 4e5;
            machine.per_token_context = 20;
            const double weights = 8e6;
            if (roofline) machine.per_pass = 0;
            CostModel model;
            const auto run = [&](const PassShape& shape) {
                if (!roofline) return machine.run(shape);
                return static_cast<int64_t>(std::max(weights / machine.exact(shape), 1.0) *
                                            static_cast<double>(machine.run(shape)));
            };
            for (int i = 0; i < 300; i++) model.add(decode(8, 500 + i), run(decode(8, 500 + i)));
            const auto target = static_cast<int64_t>(target_times * static_cast<double>(run(decode(8, 800))));
            std::vector<int64_t> times;
            int32_t done = 0, prompts = 0;
            for (int i = 0; prompts < 5 && i < 20000; i++) {
                const PassShape base = decode(8, 800 + i % 1000);
                int32_t chunk = model.largest_chunk(base, done, std::min(512, 8000 - done), target) / 16 * 16;
                if (chunk == 0 && i % 16 == 0) chunk = 16;  // a tile now and then
                const PassShape shape = with_chunk(base, done, chunk);
                times.push_back(run(shape));
                model.add(shape, times.back());
                done += chunk;
                if (done >= 8000) done = 0, prompts++;
            }
            CHECK(prompts == 5);
            std::sort(times.begin(), times.end());
            CHECK(static_cast<double>(times[times.size() * 99 / 100]) < 1.15 * static_cast<double>(target));
            // What is allowed is used too.
            CHECK(static_cast<double>(times[times.size() / 2]) > 0.6 * static_cast<double>(target));
        }
    }
}

TEST_CASE("the same passes give the same bits") {
    CostModel models[2];
    for (CostModel& model : models) {
        Machine machine;
        machine.outliers = 0.05;
        train(model, machine, 500);
    }
    CHECK(models[0].coefficients() == models[1].coefficients());
    CHECK(models[0].margin() == models[1].margin());
    CHECK(models[0].error() == models[1].error());
}
