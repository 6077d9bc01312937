// What the engine itself costs, with a model that computes nothing: a step of many running sequences, a lookup in the prefix
// cache, a step while a hundred thousand requests wait or a few that find much in the cache, and the intake of as many at once.
#include <algorithm>

#include "inside.h"
#include "kv/block_cache.h"
#include "serving/run_queue.h"

namespace treadle::bench {
namespace {

constexpr int32_t vocabulary = 97;

std::vector<int32_t> prompt_of(test::Random& random, int32_t tokens) {
    return random_prompt(random, tokens, vocabulary);
}

// Steps alone, without the polls between them.
struct Steps {
    std::vector<double> seconds;
    int64_t allocations = 0;
    double poll_s = 0;
};

Steps measure(FakeEngine& engine, int32_t steps) {
    Steps result;
    result.seconds.reserve(static_cast<size_t>(steps));
    for (int32_t i = 0; i < steps; i++) {
        const int64_t allocations = engine.allocations();
        const double begin = now_s();
        engine.step();
        const double end = now_s();
        result.allocations += engine.allocations() - allocations;
        result.seconds.push_back(end - begin);
        engine.poll();
        result.poll_s += now_s() - end;
    }
    return result;
}

// `running` sequences that generate all the time, and `queued` that wait for a place, or for blocks if there are places enough.
struct Crowd {
    Crowd(int32_t running, int32_t prompt, int32_t new_tokens, int32_t queued, bool lacks_blocks,
          float temperature = 0)
        : engine(options(running, prompt, new_tokens, queued, lacks_blocks)) {
        for (int32_t i = 0; i < running; i++)
            engine.submit(prompt_of(random, prompt), new_tokens, true, temperature);
        for (int32_t i = 0; i < 8; i++) engine.step(), engine.poll();
        for (int32_t i = 0; i < queued; i++)
            engine.submit(prompt_of(random, lacks_blocks ? 4 * block_tokens : block_tokens), 1, true);
    }

    static FakeEngineOptions options(int32_t running, int32_t prompt, int32_t new_tokens, int32_t queued,
                                     bool lacks_blocks) {
        FakeEngineOptions options;
        options.model.context = 65536;
        options.params.max_sequences = lacks_blocks ? 4 * running : running;
        options.params.max_batch_tokens = 64 * running;
        options.params.max_requests = running + queued;
        options.params.kv_blocks = running * ((prompt + new_tokens) / block_tokens + 1);
        // All that runs may grow to its end, and nothing else has room.
        options.params.memory_policy = lacks_blocks ? MemoryPolicy::reserve : MemoryPolicy::preempt;
        return options;
    }

    test::Random random{1};
    FakeEngine engine;
};

Json& add_us(Json& json, const std::string& name, const std::vector<double>& seconds) {
    return json.add(name + "_p50_us", percentile(seconds, 0.5) * 1e6)
        .add(name + "_p99_us", percentile(seconds, 0.99) * 1e6);
}

}  // namespace

Json run_step(const Flags& flags) {
    const int32_t running = flags.integer("running", 64), steps = flags.integer("steps", 2000);
    Crowd crowd(running, flags.integer("prompt", 300), steps + 100, 0, false,
                static_cast<float>(flags.number("temperature", 0)));
    const Steps found = measure(crowd.engine, steps);
    Json json;
    json.add("running", running)
        .add("steps", steps)
        .add("allocations", static_cast<double>(found.allocations));
    add_us(json, "step", found.seconds);
    return json.add("poll_us", found.poll_s / steps * 1e6);
}

Json run_queue(const Flags& flags) {
    const int32_t running = flags.integer("running", 64), steps = flags.integer("steps", 1000);
    const int32_t few = 10, many = flags.integer("queued", 100000);
    Json json;
    json.add("running", running).add("few", few).add("many", many);
    for (const bool lacks_blocks : {false, true}) {
        const std::string name = lacks_blocks ? "no_blocks" : "no_place";
        std::vector<double> medians;
        for (const int32_t queued : {few, many}) {
            Crowd crowd(running, 64, steps + 300, queued, lacks_blocks);
            crowd.engine.step();  // takes them in
            crowd.engine.poll();
            measure(crowd.engine, 100);
            const Steps found = measure(crowd.engine, steps);
            add_us(json, name + (queued == few ? "_few" : "_many"), found.seconds);
            medians.push_back(percentile(found.seconds, 0.5));
        }
        json.add(name + "_ratio", medians[1] / medians[0]);
    }
    return json;
}

// Steps with a budget, the first of which find a full mailbox.
Json run_intake(const Flags& flags) {
    const int32_t queued = flags.integer("queued", 100000), budget_us = flags.integer("budget-us", 1000);
    Crowd crowd(8, 64, 60000, queued, false);
    const RunQueueWait wait;
    std::vector<double> over_s, own_s;
    for (int32_t i = 0; i < flags.integer("steps", 50); i++) {
        const double waited = wait.seconds(), begin = now_s();
        crowd.engine.step(budget_us);
        const double late_s = now_s() - begin - budget_us * 1e-6;
        over_s.push_back(std::max(late_s, 0.0));
        own_s.push_back(std::max(late_s - (wait.seconds() - waited), 0.0));
        crowd.engine.poll();
    }
    Json json;
    json.add("queued", queued).add("budget_us", budget_us);
    json.add("overshoot_max_us", percentile(over_s, 1) * 1e6);
    return json.add("own_overshoot_max_us", percentile(own_s, 1) * 1e6);
}

// Sequences that share a long beginning run, and fill the pool. Those at the head of the queue share it too, but what they need
// beside it isn't there: also not if the less urgent half of those that run gave up theirs.
Json run_heads(const Flags& flags) {
    const int32_t running = flags.integer("running", 64), steps = flags.integer("steps", 300);
    const int32_t found = flags.integer("found", 8000), heads = 8, warm_up = 60, own = block_tokens;
    const int32_t grown = running * ((own + warm_up + steps) / block_tokens + 2);
    Json json;
    json.add("running", running).add("heads", heads).add("found_tokens", found);
    for (const bool beside_bulk : {false, true}) {
        FakeEngineOptions options;
        options.model.context = 1 << 17;
        options.params.max_sequences = 2 * running;
        options.params.max_batch_tokens = 4096;
        options.params.kv_blocks = found / block_tokens + grown;
        test::Random random(1);
        FakeEngine engine(options);
        const auto beginning = prompt_of(random, found);
        const auto submit = [&](int32_t tokens, Priority priority) {
            std::vector<int32_t> prompt = beginning;
            const auto rest = prompt_of(random, tokens);
            prompt.insert(prompt.end(), rest.begin(), rest.end());
            engine.submit(prompt, warm_up + steps, true, 0, priority);
        };
        for (int32_t i = 0; i < running; i++) {
            const bool bulk = beside_bulk && i < running / 2;
            if (i == running / 2)
                for (int32_t step = 0; step < 8; step++) engine.step(), engine.poll();
            submit(own, bulk ? Priority::bulk : Priority::interactive);
        }
        for (int32_t step = 0; step < 16; step++) engine.step(), engine.poll();
        for (int32_t i = 0; i < heads; i++) submit((grown - 2) * block_tokens, Priority::interactive);
        measure(engine, 10);
        const std::string name = beside_bulk ? "step_beside_bulk" : "step";
        add_us(json, name, measure(engine, steps).seconds);
        const Gauges& sizes = engine.stats().figures.gauges;
        if (sizes.requests_running != running || sizes.requests_waiting != heads)
            give_up("the heads of the queue don't wait for blocks");
    }
    return json;
}

// A prompt that is wholly cached, among others.
Json run_lookup(const Flags& flags) {
    const int32_t tokens = flags.integer("tokens", 8000), repeats = flags.integer("repeats", 2000);
    constexpr int32_t others = 8;
    test::TestAllocator allocator;
    MemorySet memory(allocator.hooks());
    const int32_t blocks = (others + 1) * (tokens / block_tokens + 1);
    BlockCache cache(&memory.kv, blocks, blocks, 1);
    std::pmr::vector<BlockCopy> copies(&memory.other);
    copies.reserve(1);
    test::Random random(1);
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i <= others; i++) {
        prompt = prompt_of(random, tokens);
        BlockTable table(&memory.other);
        if (!cache.prepare(&table, tokens, &copies)) give_up("the cache is too small");
        cache.commit(prompt, tokens, &table);
        cache.release(&table);
    }
    std::vector<double> match_s, release_s;
    BlockTable table(&memory.other);
    table.blocks.reserve(static_cast<size_t>(tokens / block_tokens + 1));
    for (int32_t i = 0; i < repeats; i++) {
        const double begin = now_s();
        cache.match(prompt, &table);
        const double matched = now_s();
        if (table.tokens < tokens - 1) give_up("the prompt was not found");
        cache.release(&table);
        match_s.push_back(matched - begin);
        release_s.push_back(now_s() - matched);
    }
    Json json;
    json.add("tokens", tokens);
    add_us(json, "lookup", match_s);
    return add_us(json, "release", release_s);
}

}  // namespace treadle::bench
