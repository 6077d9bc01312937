// Pins: what they cost is counted like the blocks they fill, nobody's need takes them, and everybody else still finishes.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "request/pin_list.h"
#include "scheduler/scheduler.h"
#include "test_memory.h"

using namespace treadle;

namespace {

struct Requests {
    Request* make(const std::vector<int32_t>& tokens, int32_t limit, bool pin, uint64_t salt = 0,
                  Priority priority = Priority::normal) {
        RequestParams params(&memory.other);
        params.pin = pin;
        params.priority = priority;
        params.scope.salt = salt;
        auto request = make_owned<Request>(&memory.other, &memory.other, std::move(params));
        request->arrival = all.size() + 1;
        request->live = 1;
        std::pmr::vector<int32_t> prompt(tokens.begin(), tokens.end(), &memory.other);
        request->sequences.push_back(make_owned<Sequence>(&memory.other, &memory.other, request.get(), 0,
                                                          std::move(prompt), limit, size_t{8}));
        all.push_back(std::move(request));
        return all.back().get();
    }

    test::TestAllocator allocator;
    MemorySet memory{allocator.hooks()};
    std::vector<Owned<Request>> all;
};

// One of few prefixes of few tokens, so that many begin alike.
std::vector<int32_t> some_tokens(std::mt19937& random, int32_t most) {
    std::vector<int32_t> tokens(1 + random() % static_cast<uint32_t>(most));
    const int32_t kind = static_cast<int32_t>(random() % 3);
    const size_t turn = random() % 80;
    for (size_t i = 0; i < tokens.size(); i++) tokens[i] = kind + (i >= turn ? 10 : 0);
    return tokens;
}

using Node = std::pair<uint64_t, std::vector<int32_t>>;

void add_nodes(const Request& request, std::set<Node>* whole, int32_t* parts) {
    const auto& tokens = request.sequences[0]->tokens;
    for (size_t end = 16; end <= tokens.size(); end += 16)
        whole->insert(
            {request.params.scope.salt, {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end)}});
    *parts += tokens.size() % 16 != 0 ? 1 : 0;
}

// A scheduler whose passes always succeed, and an engine's rule of what may live beside what.
struct Workload : SchedulerObserver {
    Workload(int32_t blocks, MemoryPolicy of_policy, uint32_t seed)
        : policy(of_policy), random(seed), cache(&requests.memory.kv, blocks, blocks, 4),
          scheduler(&requests.memory.other, {4, 24, of_policy, 1, INT64_MAX}, &cache, this),
          plan(&requests.memory.other) {}

    void admitted(Sequence&) override {}
    void set_back(Sequence&, int32_t, bool preempted) override { preemptions += preempted ? 1 : 0; }

    // The longest that a sequence with these tokens may get.
    int32_t most(const std::vector<int32_t>& tokens) const {
        return (cache.total() - pins.blocks() + pins.shared(tokens, {})) * limits::kv_block_tokens;
    }
    void submit() {
        const std::vector<int32_t> tokens = some_tokens(random, 90);
        const auto length = static_cast<int32_t>(tokens.size());
        if (length >= most(tokens)) return;
        const int32_t limit = std::min(most(tokens), length + 1 + static_cast<int32_t>(random() % 60));
        Request* request =
            requests.make(tokens, limit, false, 0, static_cast<Priority>(random() % priorities));
        live.push_back(request->sequences[0].get());
        scheduler.enqueue(live.back());
    }
    bool leaves_room(const Request& pin) const {
        const int32_t all_pins = pins.blocks() + pins.cost(pin);
        const auto& prefix = pin.sequences[0]->tokens;
        if (all_pins >= cache.total()) return false;
        return std::all_of(live.begin(), live.end(), [&](const Sequence* sequence) {
            const int32_t shared =
                std::max(pins.shared(sequence->tokens, {}), common_blocks(sequence->tokens, prefix));
            return all_pins + sequence->blocks_most() - shared <= cache.total();
        });
    }
    void pin() {
        const std::vector<int32_t> tokens = some_tokens(random, 60);
        Request* request = requests.make(tokens, static_cast<int32_t>(tokens.size()), true, 0,
                                         static_cast<Priority>(random() % priorities));
        if (!leaves_room(*request)) return;
        pins.add(request);
        pinned.push_back(request);
        scheduler.enqueue(request->sequences[0].get());
    }
    void unpin() {
        if (pinned.empty()) return;
        const size_t which = random() % pinned.size();
        pins.remove(pinned[which]);
        scheduler.remove(pinned[which]->sequences[0].get());
        pinned.erase(pinned.begin() + static_cast<std::ptrdiff_t>(which));
    }
    void pass() {
        scheduler.plan(&plan);
        passes++;
        idle = plan.rows.empty() ? idle + 1 : 0;
        check_decodes();
        cache.end_copies();
        for (const PlanRow& row : plan.rows) {
            Sequence* sequence = row.sequence;
            REQUIRE(sequence->state != SequenceState::pinned);
            REQUIRE_FALSE((row.logits && sequence->is_pin()));
            scheduler.commit(row);
            if (!row.logits) continue;
            sequence->tokens.push_back(static_cast<int32_t>(random() % 2));
            if (sequence->length() < sequence->limit) continue;
            sequence->state = SequenceState::finished;
            scheduler.remove(sequence);
            live.erase(std::find(live.begin(), live.end(), sequence));
        }
        REQUIRE(scheduler.consistent(0));
        check_pins();
    }
    // With reserved blocks whoever generates has its row in every pass, but for bulk.
    void check_decodes() {
        if (policy != MemoryPolicy::reserve) return;
        for (const Sequence* sequence : live)
            if (sequence->state == SequenceState::generating && urgency(*sequence) != Priority::bulk)
                REQUIRE(std::any_of(plan.rows.begin(), plan.rows.end(),
                                    [&](const PlanRow& row) { return row.sequence == sequence; }));
    }
    // A whole pin keeps all its tokens; what pins hold is at most what was charged for them.
    void check_pins() {
        std::set<int32_t> blocks;
        for (const Request* request : pinned) {
            const Sequence& sequence = *request->sequences[0];
            if (sequence.state != SequenceState::pinned) continue;
            REQUIRE(sequence.computed() == sequence.length());
            blocks.insert(sequence.cache.blocks.begin(), sequence.cache.blocks.end());
        }
        REQUIRE(static_cast<int32_t>(blocks.size()) <= pins.blocks());
    }

    MemoryPolicy policy;
    std::mt19937 random;
    Requests requests;
    BlockCache cache;
    Scheduler scheduler;
    StepPlan plan;
    PinList pins;
    std::vector<Request*> pinned;
    std::vector<Sequence*> live;
    int64_t passes = 0;
    int64_t preemptions = 0;
    int64_t idle = 0;  // passes in a row that computed nothing
};

}  // namespace

TEST_CASE("pins cost what they fill together: equal whole blocks of one scope count once") {
    std::mt19937 random(5);
    Requests requests;
    PinList pins;
    std::vector<Request*> listed;
    for (int i = 0; i < 2000; i++) {
        if (listed.empty() || random() % 5 < 3) {
            const std::vector<int32_t> tokens = some_tokens(random, 100);
            Request* pin = requests.make(tokens, static_cast<int32_t>(tokens.size()), true, random() % 2);
            const int32_t before = pins.blocks();
            const int32_t cost = pins.cost(*pin);
            pins.add(pin);
            CHECK(pins.blocks() == before + cost);
            listed.push_back(pin);
        } else {
            const size_t which = random() % listed.size();
            pins.remove(listed[which]);
            pins.remove(listed[which]);  // harmless
            listed.erase(listed.begin() + static_cast<std::ptrdiff_t>(which));
        }
        if (listed.size() > 12) {
            pins.remove(listed.front());
            listed.erase(listed.begin());
        }
        std::set<Node> whole;
        int32_t parts = 0;
        for (const Request* pin : listed) add_nodes(*pin, &whole, &parts);
        REQUIRE(pins.blocks() == static_cast<int32_t>(whole.size()) + parts);
    }
    for (Request* pin : listed) pins.remove(pin);
    CHECK(pins.empty());
    CHECK(pins.blocks() == 0);
}

TEST_CASE("with pins that come and go everybody finishes, in pools of a few blocks") {
    for (const MemoryPolicy policy : {MemoryPolicy::preempt, MemoryPolicy::reserve}) {
        for (const int32_t blocks : {4, 7, 12, 30}) {
            for (uint32_t seed = 0; seed < 6; seed++) {
                CAPTURE(blocks);
                CAPTURE(seed);
                Workload work(blocks, policy, seed);
                for (int i = 0; i < 400; i++) {
                    if (work.random() % 3 == 0 && work.live.size() < 10) work.submit();
                    if (work.random() % 9 == 0 && work.pinned.size() < 4) work.pin();
                    if (work.random() % 14 == 0) work.unpin();
                    work.pass();
                }
                while (!work.live.empty()) {
                    work.pass();
                    REQUIRE(work.idle < 3);
                }
                for (int i = 0; i < 100 && work.scheduler.has_work(); i++) work.pass();
                for (const Request* pin : work.pinned)
                    CHECK(pin->sequences[0]->state == SequenceState::pinned);
                if (policy == MemoryPolicy::reserve) CHECK(work.preemptions == 0);
                while (!work.pinned.empty()) work.unpin();
                CHECK(work.scheduler.consistent(0));
                CHECK(work.cache.held_blocks() == 0);
            }
        }
    }
}

TEST_CASE("a pin under way gives way to what is more urgent, a whole one doesn't") {
    Workload work(6, MemoryPolicy::preempt, 1);
    const std::vector<int32_t> prefix(48, 7);
    Request* pin = work.requests.make(prefix, 48, true, 0, Priority::bulk);
    work.pins.add(pin);
    work.pinned.push_back(pin);
    Sequence* sequence = pin->sequences[0].get();
    work.scheduler.enqueue(sequence);
    work.pass();
    CHECK(sequence->state == SequenceState::prompt);
    const auto urgent = [&](int32_t token, size_t count) {
        const std::vector<int32_t> tokens(count, token);
        Request* request =
            work.requests.make(tokens, static_cast<int32_t>(count) + 2, false, 0, Priority::interactive);
        work.live.push_back(request->sequences[0].get());
        work.scheduler.enqueue(work.live.back());
    };
    urgent(1, 90);  // six blocks: all there are
    work.pass();
    CHECK(sequence->state == SequenceState::waiting);
    while (!work.live.empty()) work.pass();
    for (int i = 0; i < 10; i++) work.pass();
    CHECK(sequence->state == SequenceState::pinned);
    CHECK_FALSE(work.scheduler.has_work());
    CHECK(work.scheduler.running() == 0);
    const int64_t preemptions = work.preemptions;
    urgent(2, 46);  // the three blocks that are left
    urgent(3, 46);
    for (int i = 0; i < 40; i++) work.pass();
    CHECK(work.live.empty());
    CHECK(sequence->state == SequenceState::pinned);
    CHECK(work.preemptions == preemptions);
}

TEST_CASE(
    "a prefix that lies in the cache is pinned without a pass, and many such don't hide who waits behind "
    "them") {
    Workload work(64, MemoryPolicy::preempt, 2);
    const std::vector<int32_t> prefix(40, 5);
    Request* first = work.requests.make(prefix, 42, false);
    work.live.push_back(first->sequences[0].get());
    work.scheduler.enqueue(work.live.back());
    while (!work.live.empty()) work.pass();
    for (int i = 0; i < 100; i++) {
        Request* pin = work.requests.make(prefix, 40, true);
        work.pins.add(pin);
        work.pinned.push_back(pin);
        work.scheduler.enqueue(pin->sequences[0].get());
    }
    Request* last = work.requests.make({1, 2, 3}, 8, false);
    work.live.push_back(last->sequences[0].get());
    work.scheduler.enqueue(work.live.back());
    while (work.scheduler.has_work()) work.pass();
    CHECK(work.live.empty());
    for (const Request* pin : work.pinned) CHECK(pin->sequences[0]->state == SequenceState::pinned);
    CHECK(work.cache.held_blocks() == 3);
}
