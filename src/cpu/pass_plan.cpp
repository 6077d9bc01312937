// Compiling a program, and the model of cost by which its regions are cut.
#include "cpu/pass_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/limits.h"

namespace treadle::cpu {
namespace {

constexpr double shortest_tile_ns = 4'000;   // a claim costs about 0.1 us
constexpr double longest_tile_ns = 100'000;  // a frame's deadline is met to within this
constexpr double tiles_per_thread = 3;       // so that one slow core does not hold up a region
constexpr double act_bytes_in_cache = 96 * 1024;
constexpr int32_t row_tile = 8;  // that kernels take at once: blocks of rows are multiples
constexpr int64_t tiles_of_region_max = 1 << 20;

bool is_row_wise(const Op& op) {
    return std::holds_alternative<Embed>(op) || std::holds_alternative<AddNorm>(op) ||
           std::holds_alternative<RopeWrite>(op) || std::holds_alternative<Quantize>(op) ||
           std::holds_alternative<Gate>(op);
}

bool takes_row_wise(RegionKind kind) {
    return kind == RegionKind::rows || kind == RegionKind::linear || kind == RegionKind::attend;
}

RegionKind kind_of(const Op& op) {
    if (std::holds_alternative<Linear>(op)) return RegionKind::linear;
    if (std::holds_alternative<Attend>(op)) return RegionKind::attend;
    if (std::holds_alternative<Logits>(op)) return RegionKind::logits;
    if (std::holds_alternative<Candidates>(op)) return RegionKind::candidates;
    return RegionKind::rows;
}

Status check_shape(const char* name, int64_t value, int64_t limit, Error* error) {
    if (value >= 1 && value <= limit) return Status::OK;
    return fail(error, Status::LIMIT, "%s is %lld; it may be 1 to %lld", name, static_cast<long long>(value),
                static_cast<long long>(limit));
}

}  // namespace

// Walks the program once; `producer` is the step that wrote act last.
struct PassPlan::Compiler {
    PassPlan& plan;
    const Program& program;
    const CpuWeightStore& store;
    Error* error;
    size_t producer = SIZE_MAX;

    Status find(WeightId id, WeightUse use, const char* what, const StoredWeight** out) {
        *out = store.find(id);
        if (*out == nullptr)
            return fail(error, Status::CORRUPT, "%s: weight %d is unknown", what, static_cast<int>(id));
        if ((*out)->use == use) return Status::OK;
        return fail(error, Status::CORRUPT, "%s: tensor %s was loaded for another use", what,
                    (*out)->name.c_str());
    }

    Status find_vector(WeightId id, int32_t columns, const char* what, const float** out) {
        const StoredWeight* weight = nullptr;
        TREADLE_TRY(find(id, WeightUse::vector, what, &weight));
        if (weight->columns != columns) {
            return fail(error, Status::CORRUPT, "tensor %s has %d values; %s needs %d", weight->name.c_str(),
                        static_cast<int>(weight->columns), what, static_cast<int>(columns));
        }
        *out = weight->packed.vector.data();
        return Status::OK;
    }

    // Adds a part of the step; rows < 0: any number.
    Status add_part(Step& step, WeightId id, const float* bias, int32_t rows, int32_t columns,
                    const char* what) {
        const StoredWeight* weight = nullptr;
        TREADLE_TRY(find(id, WeightUse::matrix, what, &weight));
        const PackedMatrix& matrix = weight->packed.matrix;
        if (matrix.columns != columns || (rows >= 0 && matrix.rows != rows)) {
            return fail(error, Status::CORRUPT, "tensor %s is %d x %d (rows x columns); %s needs %d x %d",
                        weight->name.c_str(), static_cast<int>(matrix.rows), static_cast<int>(matrix.columns),
                        what, static_cast<int>(rows < 0 ? matrix.rows : rows), static_cast<int>(columns));
        }
        MatrixPart part{matrix, bias, 0, 0};
        if (step.parts == 0) {
            step.first_part = static_cast<int32_t>(plan.parts.size());
        } else {
            const MatrixPart& before = plan.parts.back();
            part.column = before.column + before.weight.rows;
            part.panel = before.panel + before.weight.panels();
        }
        plan.parts.push_back(part);
        ++step.parts;
        return Status::OK;
    }

    // The step reads act: its producer has to write the form that its weights want.
    Status read_act(Step& step, const char* what) {
        if (producer == SIZE_MAX)
            return fail(error, Status::INTERNAL, "%s reads act before it is written", what);
        step.act.columns = plan.steps[producer].act.columns;
        step.act.turn = plan.steps[producer].act.turn;
        return Status::OK;
    }

    void ask_forms(const Step& step) {
        ActForm& form = plan.steps[producer].act;
        for (int32_t i = 0; i < step.parts; ++i) {
            const bool f32 = plan.parts[static_cast<size_t>(step.first_part + i)].weight.reads_f32;
            (f32 ? form.f32 : form.quantized) = true;
        }
    }

    void write_act(Step& step, int32_t columns) {
        step.act.columns = columns;
        step.act.turn = producer == SIZE_MAX ? 0 : 1 - plan.steps[producer].act.turn;
        producer = plan.steps.size();
        int32_t& most = plan.act_columns_max[step.act.turn];
        most = std::max(most, columns);
    }

    Status operator()(const Embed& op, Step& step) {
        return add_part(step, op.weight, nullptr, plan.vocabulary, plan.hidden, "the embedding");
    }
    Status operator()(const AddNorm& op, Step& step) {
        write_act(step, plan.hidden);
        return find_vector(op.gain, plan.hidden, "a norm", &step.gain);
    }
    Status operator()(const Linear& op, Step& step) {
        TREADLE_TRY(read_act(step, "a linear layer"));
        const int32_t width = plan.columns_of(op.output);
        if (op.part_count < 1 || op.part_count > 3 || width == 0) {
            return fail(error, Status::INTERNAL, "a linear layer has %d parts and output %d",
                        static_cast<int>(op.part_count), static_cast<int>(op.output));
        }
        int64_t rows = 0;
        for (int32_t i = 0; i < op.part_count; ++i) {
            const float* bias = nullptr;
            const StoredWeight* weight = nullptr;
            TREADLE_TRY(find(op.parts[i].weight, WeightUse::matrix, "a linear layer", &weight));
            const int32_t part_rows = weight->packed.matrix.rows;
            rows += part_rows;
            if (rows > width) break;
            if (op.parts[i].bias != no_weight)
                TREADLE_TRY(find_vector(op.parts[i].bias, part_rows, "a bias", &bias));
            TREADLE_TRY(add_part(step, op.parts[i].weight, bias, -1, step.act.columns, "a linear layer"));
        }
        if (rows != width) {
            return fail(error, Status::CORRUPT, "the layer of tensor %s has %lld outputs; %d are needed",
                        store.find(op.parts[0].weight)->name.c_str(), static_cast<long long>(rows),
                        static_cast<int>(width));
        }
        ask_forms(step);
        return Status::OK;
    }
    Status operator()(const RopeWrite& op, Step&) {
        TREADLE_TRY(check_layer(op.layer, op.group));
        const auto tables = static_cast<int64_t>(program.rope_pairs.size());
        if (op.rope_table < 0 || op.rope_table >= tables || op.rotary_dims < 2 || op.rotary_dims % 2 != 0 ||
            op.rotary_dims > plan.head_dim ||
            program.rope_pairs[static_cast<size_t>(op.rope_table)] != op.rotary_dims / 2) {
            return fail(error, Status::INTERNAL, "rotary_dims %d of head_dim %d does not fit rope table %d",
                        static_cast<int>(op.rotary_dims), static_cast<int>(plan.head_dim),
                        static_cast<int>(op.rope_table));
        }
        return Status::OK;
    }
    Status operator()(const Attend& op, Step&) { return check_layer(op.layer, op.group); }
    Status operator()(const Quantize& op, Step& step) {
        if (op.input != Value::attended) {
            return fail(error, Status::INTERNAL, "value %d cannot become act", static_cast<int>(op.input));
        }
        write_act(step, plan.columns_of(op.input));
        return Status::OK;
    }
    Status operator()(const Gate&, Step& step) {
        write_act(step, plan.feed_forward);
        return Status::OK;
    }
    Status operator()(const Logits& op, Step& step) {
        TREADLE_TRY(read_act(step, "the output layer"));
        TREADLE_TRY(
            add_part(step, op.weight, nullptr, plan.vocabulary, step.act.columns, "the output layer"));
        ask_forms(step);
        return Status::OK;
    }
    Status operator()(const Candidates&, Step&) { return Status::OK; }

    Status check_layer(int32_t layer, int32_t group) {
        const bool known = group >= 0 && group < static_cast<int64_t>(program.groups.size());
        if (known && layer >= 0 && layer < program.groups[static_cast<size_t>(group)].layers)
            return Status::OK;
        return fail(error, Status::INTERNAL, "layer %d of group %d is not in the cache",
                    static_cast<int>(layer), static_cast<int>(group));
    }

    Status check_shapes() {
        TREADLE_TRY(check_shape("hidden", plan.hidden, limits::hidden_max, error));
        TREADLE_TRY(check_shape("heads", plan.heads, limits::heads_max, error));
        TREADLE_TRY(check_shape("kv_heads", plan.kv_heads, plan.heads, error));
        TREADLE_TRY(check_shape("head_dim", plan.head_dim, limits::head_dim_max, error));
        TREADLE_TRY(check_shape("feed_forward", plan.feed_forward, limits::feed_forward_max, error));
        TREADLE_TRY(check_shape("vocabulary", plan.vocabulary, limits::vocabulary_max, error));
        if (plan.heads % plan.kv_heads != 0 || plan.head_dim % 16 != 0) {
            return fail(error, Status::CORRUPT,
                        "%d heads, %d kv_heads of %d: heads must be a multiple of kv_heads, "
                        "head_dim of 16",
                        static_cast<int>(plan.heads), static_cast<int>(plan.kv_heads),
                        static_cast<int>(plan.head_dim));
        }
        for (const KvGroup& group : program.groups) {
            if (group.kv_heads == plan.kv_heads && group.head_dim == plan.head_dim) continue;
            return fail(error, Status::CORRUPT,
                        "a group of layers has %d kv_heads of %d; the model has %d of %d",
                        static_cast<int>(group.kv_heads), static_cast<int>(group.head_dim),
                        static_cast<int>(plan.kv_heads), static_cast<int>(plan.head_dim));
        }
        return Status::OK;
    }

    Status check_act() {
        for (const Step& step : plan.steps) {
            plan.uses_quantized |= step.act.quantized;
            plan.uses_f32 |= step.act.f32;
            if (step.act.quantized && step.act.columns % 32 != 0) {
                return fail(error, Status::CORRUPT,
                            "an input of %d values is quantized, which needs a multiple of 32",
                            static_cast<int>(step.act.columns));
            }
        }
        return Status::OK;
    }
};

Status PassPlan::compile(const Program& program, const CpuWeightStore& store, Error* error) {
    hidden = program.hidden;
    heads = program.heads;
    kv_heads = program.kv_heads;
    head_dim = program.head_dim;
    feed_forward = program.feed_forward;
    vocabulary = program.vocabulary;
    Compiler compiler{*this, program, store, error};
    TREADLE_TRY(compiler.check_shapes());
    if (program.ops.size() >= PassCursor::regions_max) {
        return fail(error, Status::LIMIT, "the program has %zu operations; it may have %d",
                    program.ops.size(), static_cast<int>(PassCursor::regions_max) - 1);
    }
    regions.push_back({RegionKind::copies, 0, 0});
    for (const Op& op : program.ops) {
        Step step(op);
        TREADLE_TRY(std::visit([&](const auto& typed) { return compiler(typed, step); }, op));
        if (is_row_wise(op) && takes_row_wise(regions.back().kind)) {
            ++regions.back().steps;
        } else {
            regions.push_back({kind_of(op), static_cast<int32_t>(steps.size()), 1});
        }
        steps.push_back(step);
    }
    return compiler.check_act();
}

int32_t PassPlan::columns_of(Value value) const {
    switch (value) {
        case Value::residual:
        case Value::delta: return hidden;
        case Value::qkv: return qkv_columns();
        case Value::attended: return heads * head_dim;
        case Value::gate_up: return 2 * feed_forward;
        case Value::logits: return vocabulary;
        default: return 0;
    }
}

int32_t PassPlan::panels(const Step& step) const {
    const MatrixPart& last = parts[static_cast<size_t>(step.first_part + step.parts - 1)];
    return last.panel + last.weight.panels();
}

int64_t PassPlan::row_blocks_max(int32_t rows) const {
    int64_t blocks = 0;
    for (const Region& region : regions) {
        if (!region.counts_parts()) continue;
        blocks += region.kind == RegionKind::attend ? rows : (rows + row_tile - 1) / row_tile;
    }
    return blocks;
}

double tile_target_ns(double total_ns, int32_t threads) {
    if (threads == 1) return longest_tile_ns;
    return std::clamp(total_ns / (threads * tiles_per_thread), shortest_tile_ns, longest_tile_ns);
}

Cut cut_evenly(int32_t units, int32_t rows, int32_t row_step, double total_ns, int32_t threads) {
    Cut cut;
    cut.units = units;
    cut.rows = rows;
    cut.row_step = row_step;
    if (units == 0 || rows == 0) return cut;
    cut.row_blocks = (rows + row_step - 1) / row_step;
    double wanted = total_ns / tile_target_ns(total_ns, threads);
    if (wanted >= threads) wanted = std::round(wanted / threads) * threads;  // equal tiles for equal threads
    const int64_t most = std::max<int64_t>(tiles_of_region_max / cut.row_blocks, 1);
    cut.ranges = static_cast<int32_t>(
        std::clamp(wanted / cut.row_blocks + 0.5, 1.0, static_cast<double>(std::min<int64_t>(units, most))));
    cut.tiles = cut.ranges * cut.row_blocks;
    return cut;
}

namespace {

double row_elements(const PassPlan& plan,
                    const Step& step) {  // of one row, weighted by what an element costs
    if (std::holds_alternative<RopeWrite>(step.op)) return plan.qkv_columns();
    if (std::holds_alternative<Gate>(step.op)) return 3.0 * plan.feed_forward;
    if (std::holds_alternative<Quantize>(step.op)) return step.act.columns * 0.5;
    return plan.hidden;
}

// Rows of a block. Few enough that they stay in the cache while panels stream by, that their epilogue is short, and that
// threads share the epilogues; but not so few that these are hardly work.
int32_t rows_of_block(int32_t rows, double act_bytes_of_row, double epilogue_ns_of_row, int32_t threads) {
    const double blocks = std::max({rows / std::max(act_bytes_in_cache / act_bytes_of_row, 2.0 * row_tile),
                                    rows * epilogue_ns_of_row / (longest_tile_ns / 2),
                                    std::min(rows * epilogue_ns_of_row / shortest_tile_ns,
                                             threads > 1 ? threads * tiles_per_thread : 1.0)});
    const int32_t row_tiles = (rows + row_tile - 1) / row_tile;
    return row_tile * std::max(static_cast<int32_t>(row_tiles / std::max(blocks, 1.0)), 1);
}

}  // namespace

Cut PassPlan::cut(const Region& region, Dims dims, const Rates& rates, int32_t threads) const {
    if (region.kind == RegionKind::candidates) {
        return cut_evenly(dims.logit_rows, 1, 1, 2.0 * vocabulary * dims.logit_rows / rates.elements_per_ns,
                          threads);
    }
    const bool rows_alone = region.kind == RegionKind::rows;
    double row_ns = 0;  // of the row-wise operations
    for (int32_t i = rows_alone ? 0 : 1; i < region.steps; ++i)
        row_ns +=
            row_elements(*this, steps[static_cast<size_t>(region.first_step + i)]) / rates.elements_per_ns;
    if (rows_alone) return cut_evenly(dims.tokens, 1, 1, row_ns * dims.tokens, threads);

    const Step& step = steps[static_cast<size_t>(region.first_step)];
    const int32_t rows = region.kind == RegionKind::logits ? dims.logit_rows : dims.tokens;
    double ns = 0;
    bool reads_f32 = false;
    for (int32_t i = 0; i < step.parts; ++i) {
        const PackedMatrix& weight = parts[static_cast<size_t>(step.first_part + i)].weight;
        const double panel_bytes =
            static_cast<double>(weight.code_bytes_per_panel + weight.scale_bytes_per_panel);
        const double macs = 16.0 * weight.columns * rows;
        reads_f32 |= weight.reads_f32;
        const double compute_ns = macs / (weight.reads_f32 ? rates.float_macs_per_ns : rates.macs_per_ns);
        ns += weight.panels() * std::max(compute_ns, panel_bytes / rates.bytes_per_ns);
    }
    const double act_bytes_of_row = static_cast<double>(step.act.columns) * (reads_f32 ? 4 : 1);
    return cut_evenly(panels(step), rows, rows_of_block(rows, act_bytes_of_row, row_ns, threads), ns,
                      threads);
}

}  // namespace treadle::cpu
