// How the CPU backend cuts a program: regions with their epilogues, blocks of rows, the two turns of act.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "cpu/pass_plan.h"
#include "test_backend_model.h"

using namespace treadle;
using namespace treadle::tests;
using namespace treadle::cpu;

namespace {

struct Compiled {
    explicit Compiled(const TinyShape& shape) : memory(heap.hooks()), plan(&memory.other) {
        Error error;
        REQUIRE(make_cpu_weight_store(CpuTier::scalar, {}, memory, &store, &error) == Status::OK);
        const Program program = tiny_program(shape, *store, &memory.other, 1);
        REQUIRE(plan.compile(program, static_cast<const CpuWeightStore&>(*store), &error) == Status::OK);
    }
    TestHeap heap;
    MemorySet memory;
    Owned<WeightStore> store;
    PassPlan plan;
};

}  // namespace

TEST_CASE("a layer is five regions, each with the row-wise operations behind it as its epilogue") {
    const Compiled compiled({});
    const PassPlan& plan = compiled.plan;
    std::vector<RegionKind> kinds;
    for (const Region& region : plan.regions) kinds.push_back(region.kind);
    std::vector<RegionKind> expected{RegionKind::copies, RegionKind::rows};
    for (int layer = 0; layer < 2; ++layer) {
        expected.insert(expected.end(), {RegionKind::linear, RegionKind::attend, RegionKind::linear,
                                         RegionKind::linear, RegionKind::linear});
    }
    expected.insert(expected.end(), {RegionKind::logits, RegionKind::candidates});
    CHECK(kinds == expected);
    for (const Region& region : plan.regions) {
        const bool has = region.kind == RegionKind::linear || region.kind == RegionKind::attend;
        CHECK(region.counts_parts() == has);
    }
}

TEST_CASE("an epilogue writes the act that its region does not read") {
    const Compiled compiled({});
    for (const Region& region : compiled.plan.regions) {
        if (region.kind != RegionKind::linear) continue;
        const std::span<const Step> steps = compiled.plan.steps_of(region);
        for (const Step& step : steps.subspan(1)) {
            if (step.act.columns == 0) continue;  // writes none
            CHECK(step.act.turn != steps.front().act.turn);
        }
    }
}

TEST_CASE("tiles cover each panel of each row once, and the counters suffice") {
    const Compiled compiled({.hidden = 256, .feed_forward = 1024});
    const PassPlan& plan = compiled.plan;
    const Rates slow{0.5, 0.3, 0.3, 0.1, 10};
    const Rates fast{60, 16, 10, 2, 10};
    bool any_blocks = false;
    for (const Rates& rates : {slow, fast}) {
        for (const int32_t threads : {1, 2, 3, 16}) {
            for (const int32_t rows : {1, 2, 7, 8, 9, 16, 100, 512, 2000}) {
                int64_t blocks = 0;
                for (const Region& region : plan.regions) {
                    if (region.kind != RegionKind::linear) continue;
                    const Cut cut = plan.cut(region, {rows, 1}, rates, threads);
                    const int32_t panels = plan.panels(plan.steps_of(region).front());
                    std::vector<int32_t> parts(static_cast<size_t>(cut.row_blocks));
                    int64_t area = 0;
                    for (int32_t i = 0; i < cut.tiles; ++i) {
                        const Tile tile = cut.tile(i);
                        REQUIRE(tile.first_unit < tile.last_unit);
                        REQUIRE(tile.first_row < tile.last_row);
                        REQUIRE(tile.last_unit <= panels);
                        REQUIRE(tile.last_row <= rows);
                        ++parts[static_cast<size_t>(tile.row_block)];
                        area += int64_t{tile.last_unit - tile.first_unit} * (tile.last_row - tile.first_row);
                    }
                    CHECK(area == int64_t{panels} * rows);
                    CHECK(std::all_of(parts.begin(), parts.end(),
                                      [&](int32_t count) { return count == cut.ranges; }));
                    blocks += cut.row_blocks;
                    any_blocks |= cut.row_blocks > 3 && cut.ranges > 1;
                }
                CHECK(blocks <= plan.row_blocks_max(rows));
            }
        }
    }
    CHECK(any_blocks);
}
