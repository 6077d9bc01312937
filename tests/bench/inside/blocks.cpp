// Which block of a small pool belongs to whom, at a typical moment: once with blocks handed out one by one, as the engine does,
// and once with as many reserved for each conversation as it may ever need. What draw_blocks.py draws.
#include <algorithm>
#include <map>

#include "inside.h"

namespace treadle::bench {
namespace {

constexpr int32_t vocabulary = 512;
constexpr int32_t first_name = 16;  // the first token of a conversation's prompt is this plus its number

struct Piece {  // what one conversation has in the cache
    int32_t conversation;
    int32_t positions;
    std::vector<int32_t> blocks;
};
using Moment = std::vector<Piece>;  // of one pass

// Follows the tables of the passes. A first block changes hands only by a pass that writes its position 0.
class Follower {
public:
    void see(const PassInput& input) {
        const GroupInput& group = input.groups[0];
        Moment moment;
        for (const AttentionWork& work : group.work) {
            const int32_t* table = group.block_table.data() + work.first_block;
            if (work.first_position == 0)
                owner_of_first_[table[0]] = input.tokens[static_cast<size_t>(work.first_row)] - first_name;
            const int32_t end = work.first_position + work.rows;
            const int32_t blocks = (end + block_tokens - 1) / block_tokens;
            moment.push_back({owner_of_first_.at(table[0]), end, {table, table + blocks}});
        }
        std::sort(moment.begin(), moment.end(),
                  [](const Piece& a, const Piece& b) { return a.conversation < b.conversation; });
        moments.push_back(std::move(moment));
    }
    std::vector<Moment> moments;

private:
    std::map<int32_t, int32_t> owner_of_first_;
};

struct Run {
    std::vector<Moment> moments;  // from the first end of a conversation until nobody waits any more
    double running_mean = 0;
    uint64_t preemptions = 0;
    int64_t passes = 0;
};

Run run_conversations(const Flags& flags, MemoryPolicy policy) {
    const int32_t conversations = flags.integer("conversations", 100), blocks = flags.integer("blocks", 32);
    const int32_t reserved = flags.integer("reserved", 8);  // blocks that a conversation may need
    Follower follower;
    FakeEngineOptions options;
    options.model.vocabulary = vocabulary;
    options.model.end_period = 17;  // a twelfth of the answers of chat logs
    options.params.max_sequences = blocks;
    options.params.max_requests = conversations;
    options.params.kv_blocks = blocks;
    options.params.memory_policy = policy;
    options.checking = test::FakeControl::Checking::all;
    options.watch = [&](const PassInput& input) { follower.see(input); };
    FakeEngine engine(options);
    ChatLengths lengths;
    lengths.prompt_median = 25;
    lengths.prompt_max = reserved * block_tokens / 2;
    test::Random random(static_cast<uint64_t>(flags.integer("seed", 1)));
    for (int32_t i = 0; i < conversations; i++) {
        std::vector<int32_t> prompt = random_prompt(random, lengths.draw(random).prompt, vocabulary);
        prompt[0] = first_name + i;
        engine.submit(prompt, reserved * block_tokens + 1 - static_cast<int32_t>(prompt.size()), false);
    }
    Run run;
    for (int32_t ended = 0; ended < conversations;) {
        const bool some_wait = engine.step().waiting > 0;
        ended += engine.poll();
        if (ended > 0 && some_wait) run.moments.push_back(follower.moments.back());
    }
    if (engine.violations() > 0) give_up("the fake model found a fault in the cache");
    for (const Moment& moment : run.moments) run.running_mean += static_cast<double>(moment.size());
    run.running_mean /= static_cast<double>(run.moments.size());
    run.preemptions = engine.stats().figures.counters.preemptions;
    run.passes = static_cast<int64_t>(follower.moments.size());
    return run;
}

// One with as many conversations as in half of the moments.
const Moment& typical(const Run& run) {
    std::vector<double> counts;
    for (const Moment& moment : run.moments) counts.push_back(static_cast<double>(moment.size()));
    const double median = percentile(counts, 0.5);
    const auto middle = run.moments.begin() + static_cast<std::ptrdiff_t>(run.moments.size() / 2);
    return *std::find_if(middle, run.moments.end(),
                         [&](const Moment& moment) { return static_cast<double>(moment.size()) == median; });
}

struct Cell {
    int32_t owner = -1;  // in order of arrival: 0 is A
    int32_t filled = 0;
};

std::string panel(const std::string& title, const std::vector<Cell>& cells, size_t conversations) {
    std::string list;
    for (const Cell& cell : cells) {
        const std::string owner =
            cell.owner < 0 ? "null" : std::string("\"") + static_cast<char>('A' + cell.owner % 26) + "\"";
        list += (list.empty() ? "" : ", ") + std::string("{\"owner\": ") + owner +
                ", \"filled\": " + std::to_string(cell.filled) + "}";
    }
    Json json;
    json.raw("title", "\"" + title + "\"").raw("blocks", "[" + list + "]");
    json.add("conversations", static_cast<uint64_t>(conversations));
    return json.text();
}

int32_t filled(const Piece& piece, int32_t block) {
    return std::clamp(piece.positions - block * block_tokens, 0, block_tokens);
}

}  // namespace

Json run_blocks(const Flags& flags) {
    const auto blocks = static_cast<size_t>(flags.integer("blocks", 32));
    const int32_t reserved = flags.integer("reserved", 8);
    const Run contiguous = run_conversations(flags, MemoryPolicy::reserve);
    const Run paged = run_conversations(flags, MemoryPolicy::preempt);
    std::vector<Cell> pieces(blocks), pages(blocks);
    const Moment& before = typical(contiguous);
    for (size_t i = 0; i < before.size(); i++)  // contiguous pieces, one after another
        for (int32_t k = 0; k < reserved; k++)
            pieces[i * static_cast<size_t>(reserved) + static_cast<size_t>(k)] = {static_cast<int32_t>(i),
                                                                                  filled(before[i], k)};
    const Moment& now = typical(paged);
    for (size_t i = 0; i < now.size(); i++)
        for (size_t k = 0; k < now[i].blocks.size(); k++)
            pages[static_cast<size_t>(now[i].blocks[k])] = {static_cast<int32_t>(i),
                                                            filled(now[i], static_cast<int32_t>(k))};
    Json json;
    json.add("contiguous_running_mean", contiguous.running_mean)
        .add("paged_running_mean", paged.running_mean);
    json.add("contiguous_passes", static_cast<double>(contiguous.passes));
    json.add("paged_passes", static_cast<double>(paged.passes)).add("preemptions", paged.preemptions);
    json.raw("contiguous", panel("Contiguous: " + std::to_string(reserved) + " blocks reserved for each",
                                 pieces, before.size()));
    json.raw("paged", panel("Paged: a block when it is needed", pages, now.size()));
    return json;
}

}  // namespace treadle::bench
