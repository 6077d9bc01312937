// A host that does anything in any order, by seed: thousands of submits, cancels, releases, pins, steps, polls with tiny buffers
// and questions, in the middle of steps too. Whatever it does, each request ends once, says what it says alone, and leaves
// nothing behind.
#include <algorithm>

#include "api_fixture.h"

using namespace treadle::test;

namespace {

// A request as it may be submitted many times, and what it says when it runs alone.
struct Kind {
    std::vector<int32_t> prompt;
    engine_request_params params;
    std::string stop_string;
    engine_text stop;
    engine_part part;
    Story alone;
};

std::vector<Kind> make_kinds(Random& random, size_t count) {
    std::vector<Kind> kinds(count);
    for (Kind& kind : kinds) {
        kind.prompt.resize(1 + random.below(random.below(4) == 0 ? 150 : 20));
        for (int32_t& token : kind.prompt) token = first_byte + static_cast<int32_t>(random.below(300));
        kind.part = tokens_part(kind.prompt);
        kind.params = request_params(&kind.part, 1);
        kind.params.max_tokens = static_cast<int32_t>(1 + random.below(random.below(4) == 0 ? 100 : 12));
        kind.params.ignore_end = random.below(2);
        kind.params.temperature = random.below(3) == 0 ? 0.0f : 1.5f;
        kind.params.top_k = static_cast<int32_t>(random.below(2) * 300);
        kind.params.seed = random.next();
        kind.params.logprobs = random.below(2) == 0 ? 0 : static_cast<int32_t>(random.below(21));
        if (random.below(2) == 0)
            kind.stop_string = std::string(1, static_cast<char>('a' + random.below(26)));
        kind.stop = {kind.stop_string.c_str(), ENGINE_ZERO_TERMINATED};
        if (!kind.stop_string.empty()) {
            kind.params.stop_strings = &kind.stop;
            kind.params.stop_string_count = 1;
        }
        Host host;
        kind.alone = host.answer(kind.params);
    }
    return kinds;
}

// What became of one submission.
struct Seen {
    const Kind* kind;
    bool keep;
    bool released = false;
    bool cancelled = false;
    Story story;
    bool gone() const { return released || (story.finished > 0 && !keep); }
};

class RandomHost {
public:
    RandomHost(uint64_t seed, const std::vector<Kind>& kinds)
        : random_(seed), kinds_(kinds), host_(params(), params_with_malloc()) {}

    void run(int operations) {
        for (int i = 0; i < operations; i++) act();
        for (int i = 0; i < 100000; i++) {
            step();
            bool more = true;
            while (more) more = poll(8, 4096);
            if (report_.next_step_us != 0 && report_.waiting_poll == 0) break;
        }
        while (!pins_.empty()) unpin(0, true);
        acting_ = true;  // nothing more comes in
        step();
        check_end();
    }

private:
    engine_params params() {
        engine_params params = small_engine_params();
        params.max_sequences = static_cast<int32_t>(1 + random_.below(6));
        params.max_batch_tokens = static_cast<int32_t>(1 + random_.below(40));
        params.max_requests = static_cast<int32_t>(1 + random_.below(24));
        params.kv_blocks = static_cast<int32_t>(16 + 2 * static_cast<uint32_t>(pins_max) + random_.below(40));
        params.clock = read_clock;
        params.clock_user = this;
        return params;
    }

    // Budgets cut the same each time, and now and then the host's other threads are quick: something happens in mid-step.
    static int64_t read_clock(void* user) {
        auto* self = static_cast<RandomHost*>(user);
        if (self->stepping_ && !self->acting_ && self->random_.below(24) == 0) {
            self->acting_ = true;
            self->act_without_step();
            self->acting_ = false;
        }
        return ++self->now_us_ * 1000;
    }

    void act() {
        if (random_.below(3) == 0) {
            step();
        } else {
            act_without_step();
        }
    }

    void act_without_step() {
        switch (random_.below(10)) {
            case 0:
            case 1: submit(); break;
            case 2: cancel(); break;
            case 3: release(); break;
            case 4: ask(); break;
            case 5: read_tokens(); break;
            case 6:
                if (random_.below(2) == 0) {
                    pin();
                } else if (!pins_.empty()) {
                    unpin(random_.below(static_cast<uint32_t>(pins_.size())), false);
                }
                break;
            case 7: CHECK(engine_trim(host_.e, nullptr) == ENGINE_OK); break;
            default: poll(random_.below(6), random_.below(5) * random_.below(60)); break;
        }
    }

    void submit() {
        const Kind& kind = kinds_[random_.below(static_cast<uint32_t>(kinds_.size()))];
        engine_request_params params = kind.params;
        params.keep = random_.below(4) == 0;
        params.user_data = seen_.size();
        engine_request id = 0;
        Failure failure;
        const engine_status status = engine_submit(host_.e, &params, &id, failure);
        if (status != ENGINE_OK) {
            CHECK(status == ENGINE_FULL);
            return;
        }
        CHECK(seen_.count(id) == 0);  // ids are not reused
        seen_[id] = {&kind, params.keep != 0, false, false, {}};
        order_.push_back(id);
    }

    // Of two blocks at most, so that every request still gets as long as it does alone.
    void pin() {
        if (pins_.size() == pins_max) return;
        const Kind& kind = kinds_[random_.below(static_cast<uint32_t>(kinds_.size()))];
        const size_t size = std::min<size_t>(kind.prompt.size(), 1 + random_.below(32));
        const std::vector<int32_t> prefix(kind.prompt.begin(),
                                          kind.prompt.begin() + static_cast<std::ptrdiff_t>(size));
        const engine_part part = tokens_part(prefix);
        engine_pin_params params;
        REQUIRE(engine_pin_params_init(&params, sizeof params) == ENGINE_OK);
        params.parts = &part;
        params.part_count = 1;
        params.priority = static_cast<int32_t>(random_.below(3));
        engine_request id = 0;
        const engine_status status = engine_pin(host_.e, &params, &id, nullptr);
        if (status == ENGINE_OK) pins_.push_back(id);
        CHECK((status == ENGINE_OK || status == ENGINE_FULL));
    }

    void unpin(size_t which, bool must_be_whole) {
        engine_request_info info;
        REQUIRE(engine_request_info_init(&info, sizeof info) == ENGINE_OK);
        REQUIRE(engine_request_get_info(host_.e, pins_[which], &info) == ENGINE_OK);
        if (must_be_whole) CHECK(info.state == ENGINE_REQUEST_PINNED);
        if (info.state == ENGINE_REQUEST_PINNED) CHECK(info.prompt_tokens_done == info.prompt_tokens);
        REQUIRE(engine_unpin(host_.e, pins_[which]) == ENGINE_OK);
        pins_.erase(pins_.begin() + static_cast<std::ptrdiff_t>(which));
    }

    // Any request that ever was, young ones more often.
    Seen* pick(engine_request* id) {
        if (order_.empty()) return nullptr;
        const auto size = static_cast<uint32_t>(order_.size());
        const uint32_t back = random_.below(2) == 0 ? random_.below(std::min(size, 8u)) : random_.below(size);
        *id = order_[size - 1 - back];
        return &seen_[*id];
    }

    void cancel() {
        engine_request id = 0;
        Seen* seen = pick(&id);
        if (seen == nullptr) return;
        CHECK(engine_cancel(host_.e, id) == (seen->gone() ? ENGINE_STALE_ID : ENGINE_OK));
        seen->cancelled = true;
    }

    void release() {
        engine_request id = 0;
        Seen* seen = pick(&id);
        if (seen == nullptr || random_.below(2) == 0) return;
        CHECK(engine_release(host_.e, id) == (seen->gone() ? ENGINE_STALE_ID : ENGINE_OK));
        seen->released = true;
    }

    void ask() {
        engine_request id = 0;
        Seen* seen = pick(&id);
        if (seen == nullptr) return;
        engine_request_info info;
        REQUIRE(engine_request_info_init(&info, sizeof info) == ENGINE_OK);
        const engine_status status = engine_request_get_info(host_.e, id, &info);
        CHECK(status == (seen->gone() ? ENGINE_STALE_ID : ENGINE_OK));
        if (status != ENGINE_OK) return;
        CHECK(info.prompt_tokens == static_cast<int32_t>(seen->kind->prompt.size()));
        CHECK(info.prompt_tokens_done <= info.prompt_tokens);
        CHECK(info.generated_tokens >= static_cast<int32_t>(seen->story.tokens.size()));
        CHECK((info.queue_place >= 0) == (info.state == ENGINE_REQUEST_WAITING));
        CHECK((info.finish_reason != ENGINE_FINISH_NONE) == (info.state == ENGINE_REQUEST_FINISHED));
        if (info.state == ENGINE_REQUEST_WAITING_POLL)
            CHECK(info.generated_tokens >= static_cast<int32_t>(seen->story.tokens.size()) + 1);
        CHECK(info.status == ENGINE_OK);
        CHECK(info.message[0] == 0);
    }

    void read_tokens() {
        engine_request id = 0;
        Seen* seen = pick(&id);
        if (seen == nullptr) return;
        int32_t tokens[300];
        const size_t capacity = random_.below(2) == 0 ? 300 : random_.below(30);
        size_t count = 0;
        const engine_status status = engine_sequence_tokens(host_.e, id, 0, tokens, capacity, &count);
        if (seen->gone()) {
            CHECK(status == ENGINE_STALE_ID);
            return;
        }
        CHECK(status == (count <= capacity ? ENGINE_OK : ENGINE_BUFFER_TOO_SMALL));
        if (status != ENGINE_OK) return;
        std::vector<int32_t> whole = seen->kind->prompt;
        whole.insert(whole.end(), seen->kind->alone.tokens.begin(), seen->kind->alone.tokens.end());
        REQUIRE(count <= whole.size());
        CHECK(std::equal(tokens, tokens + count, whole.begin()));
    }

    void step() {
        engine_step_params params;
        REQUIRE(engine_step_params_init(&params, sizeof params) == ENGINE_OK);
        REQUIRE(engine_step_report_init(&report_, sizeof report_) == ENGINE_OK);
        params.budget_us = random_.below(3) == 0 ? 0 : random_.below(60);
        std::vector<engine_request> cancelled;
        for (const auto& [id, seen] : seen_)
            if (seen.cancelled && !seen.gone()) cancelled.push_back(id);
        stepping_ = true;
        REQUIRE(engine_step(host_.e, &params, &report_) == ENGINE_OK);
        stepping_ = false;
        if (report_.next_step_us != 0) CHECK(report_.running == report_.waiting_poll);
        for (const engine_request id : cancelled) {
            if (seen_[id].gone()) continue;
            engine_request_info info;
            REQUIRE(engine_request_info_init(&info, sizeof info) == ENGINE_OK);
            REQUIRE(engine_request_get_info(host_.e, id, &info) == ENGINE_OK);
            CHECK(info.state == ENGINE_REQUEST_FINISHED);  // within one step
        }
    }

    bool poll(size_t capacity, size_t bytes_capacity) {
        struct LongEvent {  // of a program built against a newer header
            engine_event event;
            uint64_t newer;
        };
        std::vector<LongEvent> events(capacity);
        std::vector<uint64_t> buffer(bytes_capacity / 8 + 1);
        char* bytes = reinterpret_cast<char*>(buffer.data());
        size_t count = 99, used = 99, needed = 99;
        const engine_status status = engine_poll_tokens(
            host_.e, capacity == 0 ? nullptr : &events[0].event, sizeof(LongEvent), capacity, &count,
            bytes_capacity == 0 ? nullptr : bytes, bytes_capacity, &used, &needed);
        CHECK(status == (count == 0 && needed > 0 ? ENGINE_BUFFER_TOO_SMALL : ENGINE_OK));
        CHECK(count <= capacity);
        CHECK(used <= bytes_capacity);
        CHECK(used % 8 == 0);
        CHECK(needed % 8 == 0);
        if (needed > 0) CHECK(needed > bytes_capacity - used);
        if (needed > 0) CHECK(count < capacity);
        for (size_t i = 0; i < count; i++) {
            CHECK(events[i].newer == 0);
            tell(events[i].event, bytes, used);
        }
        return count > 0;
    }

    void tell(const engine_event& event, const char* bytes, size_t used) {
        REQUIRE(seen_.count(event.request) == 1);
        Seen& seen = seen_[event.request];
        Story& story = seen.story;
        CHECK(!seen.released);
        CHECK(story.finished == 0);
        CHECK(order_[event.user_data] == event.request);
        REQUIRE(event.text_offset % 8 == 0);
        REQUIRE(event.logprobs_offset % 8 == 0);
        REQUIRE(event.text_offset + event.text_bytes <= used);
        REQUIRE(event.logprobs_offset + static_cast<size_t>(event.logprob_count) * sizeof(engine_logprob) <=
                used);
        story.text.append(bytes + event.text_offset, event.text_bytes);
        const auto prompt = static_cast<int32_t>(seen.kind->prompt.size());
        if (event.kind == ENGINE_EVENT_TOKEN) {
            CHECK(event.position == prompt + static_cast<int32_t>(story.tokens.size()));
            story.tokens.push_back(event.token);
            story.logprobs.push_back(event.logprob);
            CHECK(event.logprob_count == seen.kind->params.logprobs);
            std::vector<engine_logprob> best(static_cast<size_t>(event.logprob_count));
            if (!best.empty())
                std::memcpy(best.data(), bytes + event.logprobs_offset, best.size() * sizeof best[0]);
            const std::vector<engine_logprob>& alone = seen.kind->alone.best[story.tokens.size() - 1];
            CHECK(
                (best.empty() || std::memcmp(best.data(), alone.data(), best.size() * sizeof best[0]) == 0));
        } else {
            CHECK(event.token == -1);
        }
        if (event.kind == ENGINE_EVENT_PROGRESS) CHECK(event.position <= prompt);
        if (event.kind != ENGINE_EVENT_FINISHED) return;
        story.finished++;
        story.finish_reason = event.finish_reason;
        CHECK(event.status == ENGINE_OK);
        CHECK(event.prompt_tokens == prompt);
        CHECK(event.generated_tokens == static_cast<int32_t>(story.tokens.size()));
        check_story(seen);
    }

    void check_story(const Seen& seen) {
        const Story& alone = seen.kind->alone;
        const Story& story = seen.story;
        REQUIRE(story.tokens.size() <= alone.tokens.size());
        CHECK(std::equal(story.tokens.begin(), story.tokens.end(), alone.tokens.begin()));
        CHECK(std::equal(story.logprobs.begin(), story.logprobs.end(), alone.logprobs.begin()));
        if (story.finish_reason == ENGINE_FINISH_CANCELLED) {
            CHECK(seen.cancelled);
            return;
        }
        CHECK(story.finish_reason == alone.finish_reason);
        CHECK(story.tokens.size() == alone.tokens.size());
        CHECK(story.text == alone.text);
    }

    void check_end() {
        for (const auto& [id, seen] : seen_)
            if (!seen.released) CHECK(seen.story.finished == 1);
        engine_stats stats;
        REQUIRE(engine_stats_init(&stats, sizeof stats) == ENGINE_OK);
        REQUIRE(engine_get_stats(host_.e, &stats) == ENGINE_OK);
        engine_info info;
        REQUIRE(engine_info_init(&info, sizeof info) == ENGINE_OK);
        REQUIRE(engine_get_info(host_.e, &info) == ENGINE_OK);
        CHECK(stats.requests_submitted == seen_.size());
        CHECK(stats.requests_finished == seen_.size());
        CHECK(stats.requests_failed == 0);
        CHECK(stats.kv_blocks_free + stats.kv_blocks_cached + stats.kv_blocks_trimmed == info.kv_blocks);
        CHECK(stats.kv_blocks_held == 0);
        CHECK(stats.running + stats.waiting + stats.waiting_poll == 0);
        CHECK(report_.free_blocks + stats.kv_blocks_trimmed == info.kv_blocks);
    }

    static constexpr size_t pins_max = 3;

    Random random_;
    const std::vector<Kind>& kinds_;
    int64_t now_us_ = 0;
    bool stepping_ = false;
    bool acting_ = false;  // in mid-step; what it does asks the clock, too
    Host host_;
    engine_step_report report_ = {};
    std::map<engine_request, Seen> seen_;
    std::vector<engine_request> order_;
    std::vector<engine_request> pins_;
};

}  // namespace

TEST_CASE("whatever a host does in whatever order, each request ends once and says what it says alone") {
    Random random(2024);
    const std::vector<Kind> kinds = make_kinds(random, 24);
    for (uint64_t seed = 1; seed <= 40; seed++) {
        CAPTURE(seed);
        RandomHost(seed, kinds).run(1000);
    }
}
