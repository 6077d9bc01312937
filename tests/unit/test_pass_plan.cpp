// How the CPU backend cuts a program: regions with their epilogues, blocks of rows, the two turns of act.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "cpu/pass_buffers.h"
#include "cpu/pass_plan.h"
#include "test_backend_model.h"

using namespace treadle;
using namespace treadle::tests;
using namespace treadle::cpu;

namespace {

struct Compiled {
    explicit Compiled(const TinyShape& shape) : memory(heap.hooks()), plan(&memory.other) {
        Error error;
        REQUIRE(make_cpu_weight_store(CpuTier::scalar, memory, &store, &error) == Status::OK);
        program = std::make_unique<Program>(tiny_program(shape, *store, &memory.other, 1));
        REQUIRE(plan.compile(*program, static_cast<const CpuWeightStore&>(*store), &error) == Status::OK);
    }
    TestHeap heap;
    MemorySet memory;
    Owned<WeightStore> store;
    std::unique_ptr<Program> program;
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

TEST_CASE("attention of one long sequence is cut for all threads, and its pieces cover each span once") {
    constexpr int32_t positions = 8192;
    Compiled compiled({.kv_heads = 1});
    PassPlan& plan = compiled.plan;
    PassBuffers buffers(&compiled.memory.other);
    buffers.create_cache(*compiled.program, positions / 16, &compiled.memory.other, &compiled.memory.kv);
    buffers.allocate(plan, *compiled.program, {64, 64}, 16, &compiled.memory.scratch);
    TestSequence sequence{std::vector<int32_t>(positions, 1), std::vector<int32_t>(positions / 16), 0};
    std::iota(sequence.blocks.begin(), sequence.blocks.end(), 0);
    const Rates rates{60, 16, 10, 2, 10};
    for (const int32_t threads : {2, 16}) {
        for (const int32_t rows : {1, 8, 61}) {
            sequence.computed = positions - rows;
            const TestPass pass(*compiled.program, {{&sequence, rows, true}});
            REQUIRE(buffers.take(pass.input(), pass.dims(), plan) == Status::OK);
            buffers.cut_attention(plan, rates, threads);
            const GroupPass& group = buffers.groups[0];
            if (rows == 1) CHECK(group.tiles >= std::min(3 * threads, positions / span_positions));
            int32_t items = 0;
            for (int32_t i = 0; i < group.unit_count; ++i) {
                const AttentionUnit& unit = group.units[static_cast<size_t>(i)];
                REQUIRE(unit.first_item == items);
                items += unit.pieces;
                REQUIRE(unit.first_span(0) == 0);
                REQUIRE(unit.first_span(unit.pieces) == unit.spans());
                for (int32_t piece = 0; piece < unit.pieces; ++piece)
                    REQUIRE(unit.first_span(piece) < unit.first_span(piece + 1));
            }
            int32_t item = 0;
            for (int32_t i = 0; i < group.tiles; ++i) {
                const AttentionTile& tile = group.attention_tiles[static_cast<size_t>(i)];
                const AttentionUnit& unit = group.units[static_cast<size_t>(tile.first_unit)];
                REQUIRE(item >= unit.first_item);
                REQUIRE(item < unit.first_item + unit.pieces);
                REQUIRE(tile.end_item > item);
                item = tile.end_item;
            }
            CHECK(item == items);
        }
    }
}
