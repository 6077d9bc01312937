// The plan of a pass: all decodes, then prompts and admissions class by class; bulk comes after all of it.
#include "scheduler/scheduler.h"

#include <algorithm>

#include "base/limits.h"

namespace treadle {
namespace {

// A head of the queue that lacks blocks lets this many smaller followers pass; then it has the next blocks that come back.
constexpr int32_t skips_max = 32;
// What a plan looks at behind the head bounds its cost when thousands wait: sequences, and lookups in the cache.
constexpr int32_t followers_max = 64;
constexpr int32_t lookups_max = 8;
// Pieces of prompts that are cut for time are multiples of what a linear layer computes at once; one goes into each eighth pass
// at least, however long that takes.
constexpr int32_t tile_tokens = 8;
constexpr int32_t passes_without_prompt_max = 7;
constexpr int32_t batch_growth = 2;
// Bulk rows beside others make a pass longer by a tenth at most.
constexpr int64_t bulk_share = 10;
// Who comes while bulk has the engine to itself waits for the pass under way: its prompts make none longer than this, or than
// twice its decodes.
constexpr int64_t bulk_prompts_ns = 50'000'000;

bool decodes(const Sequence& sequence) {
    return sequence.state == SequenceState::generating && sequence.beam_row == BeamRow::due &&
           sequence.runnable();
}

bool prefills(const Sequence& sequence) {
    return sequence.state == SequenceState::prompt && sequence.beam_row == BeamRow::due &&
           sequence.runnable();
}

bool ranks(const Sequence* a, const Sequence* b) { return ranks_before(*a, *b); }

bool waits_longer(const Sequence* a, const Sequence* b) {
    return a->last_plan != b->last_plan ? a->last_plan < b->last_plan : ranks_before(*a, *b);
}

Priority next_class(Priority priority) { return static_cast<Priority>(static_cast<int32_t>(priority) + 1); }

// The producer, whose prompt is under way, will come to positions that the other one needs, too: a block of them at least.
bool waits_for(const Sequence& sequence, const Sequence& producer) {
    const int32_t shared = producer.computed() + limits::kv_block_tokens;
    if (!(producer.cache.scope == sequence.cache.scope) ||
        std::min(sequence.length(), producer.length()) < shared)
        return false;
    const int32_t* mine = sequence.tokens.data();
    const int32_t* its = producer.tokens.data();
    const int32_t done = producer.computed();  // what comes next tells most of them apart
    return std::equal(mine + done, mine + shared, its + done) && std::equal(mine, mine + done, its);
}

}  // namespace

Scheduler::Scheduler(Memory* memory, const SchedulerParams& params, BlockCache* cache,
                     SchedulerObserver* observer)
    : params_(params), cache_(cache), observer_(observer), running_(memory), order_(memory) {
    running_.reserve(static_cast<size_t>(params.max_sequences));
    order_.reserve(static_cast<size_t>(params.max_sequences));
}

SequenceQueue& Scheduler::queue_of(Priority priority) {
    return priority == Priority::paused ? paused_ : waiting_[static_cast<size_t>(priority)];
}

void Scheduler::enqueue(Sequence* sequence) {
    sequence->state = SequenceState::waiting;
    sequence->lack = {};
    queue_of(sequence->request->params.priority).insert(sequence);
    stalled_ = false;
}

void Scheduler::reprioritize(Sequence* sequence) {
    if (sequence->queue == &pinned_) return;
    stalled_ = false;
    if (sequence->queue == nullptr) {
        unordered_ = true;
        return;
    }
    sequence->queue->remove(sequence);
    enqueue(sequence);
}

// ---- The plan

// Who was preempted for one that lacks blocks all the same leaves room for those that nobody looked at then: another attempt.
void Scheduler::plan(StepPlan* plan, int64_t pass_budget_ns) {
    last_decodes_ = plan->decodes;
    do {
        plan_once(plan, pass_budget_ns);
    } while (plan->rows.empty() && preempted_);
    stalled_ = plan->rows.empty() && !kept_pin_;
}

void Scheduler::plan_once(StepPlan* plan, int64_t pass_budget_ns) {
    plan->clear();
    plans_++;
    preempted_ = closed_ = kept_pin_ = false;
    lend();
    if (unordered_) order_running();
    limit_ns_ = pass_budget_ns;
    const bool prompts = prompts_wait(foreground);
    plan_classes(plan, foreground);
    const bool only_decodes = plan->decodes == static_cast<int32_t>(plan->rows.size());
    passes_without_prompt_ =
        prompts && only_decodes ? std::min(passes_without_prompt_ + 1, passes_without_prompt_max) : 0;
    plan_background(plan);
}

// Those who compute a beginning that more urgent ones wait for are as urgent as these, while they wait.
void Scheduler::lend() {
    for (Sequence* producer : running_) {
        if (producer->request->beams != nullptr && producer->index != 0) continue;  // once for a unit
        Priority lent = Priority::paused;
        for_each_of_unit(producer,
                         [&](const Sequence* one) { lent = std::min(lent, most_urgent_waiter(*one)); });
        unordered_ |= lent != producer->lent;
        for_each_of_unit(producer, [&](Sequence* one) { one->lent = lent; });
    }
}

// Of those that wait for what the sequence computes, as far as they are more urgent than it; paused: there is none.
Priority Scheduler::most_urgent_waiter(const Sequence& producer) const {
    if (!prefills(producer)) return Priority::paused;
    const Priority own = std::min(producer.request->params.priority, background.last);
    for (Priority priority = foreground.first; priority < own; priority = next_class(priority)) {
        const Sequence* waiting = waiting_[static_cast<size_t>(priority)].front();
        for (int32_t i = 0; i < followers_max && waiting != nullptr; i++, waiting = waiting->next)
            if (waiting->runnable() && waits_for(*waiting, producer)) return priority;
    }
    return Priority::paused;
}

// Bulk has the passes in which nothing else is computed, and rows that hardly make a pass longer.
void Scheduler::plan_background(StepPlan* plan) {
    const bool none_runs = !unordered_ && (running_.empty() || !background.holds(*running_.back()));
    if (none_runs && waiting_[static_cast<size_t>(Priority::bulk)].empty()) return;
    if (!plan->rows.empty()) {
        if (!cost_.ready()) return;
        const int64_t base_ns = cost_.predict_high_ns(plan->shape);
        limit_ns_ = std::min(limit_ns_, base_ns + base_ns / bulk_share);
    }
    plan_classes(plan, background);
}

// Paused sequences leave the others alone, with their blocks; the rest are ranked anew.
void Scheduler::order_running() {
    unordered_ = false;
    linked_.front() += cache_->total();  // all blocks may be of another class now
    order_.assign(running_.begin(), running_.end());
    for (Sequence* sequence : order_)
        if (sequence->request->params.priority == Priority::paused)
            set_back(sequence, sequence->computed(), false);
    std::sort(running_.begin(), running_.end(), ranks);
}

void Scheduler::plan_classes(StepPlan* plan, Classes classes) {
    const int32_t kept_for_prompts = params_.max_batch_tokens > 1 && prompts_wait(classes) ? 1 : 0;
    for (Priority priority = classes.first; priority <= classes.last; priority = next_class(priority))
        plan_decodes(plan, priority, kept_for_prompts);
    prompt_limit_ns_ = limit_ns_;
    if (classes.first == Priority::bulk && limit_ns_ == INT64_MAX && cost_.ready())
        prompt_limit_ns_ =
            std::max(bulk_prompts_ns, 2 * std::min(cost_.predict_high_ns(plan->shape), INT64_MAX / 2));
    // Whoever waits goes before the prompts of less urgent ones, however long these have run.
    for (Priority priority = classes.first; priority <= classes.last; priority = next_class(priority)) {
        plan_prompts(plan, {priority, priority});
        admit(plan, priority);
    }
}

// Decodes that fill a small batch must not shut out prompts: those get a token of every pass at least.
bool Scheduler::prompts_wait(Classes classes) const {
    const bool waiting = std::any_of(
        waiting_.begin() + static_cast<int>(classes.first),
        waiting_.begin() + static_cast<int>(classes.last) + 1,
        [this](const SequenceQueue& queue) { return !queue.empty() && has_slot(*queue.front()); });
    return waiting || std::any_of(running_.begin(), running_.end(), [&](const Sequence* sequence) {
               return classes.holds(*sequence) && prefills(*sequence);
           });
}

void Scheduler::plan_decodes(StepPlan* plan, Priority priority, int32_t kept_for_prompts) {
    order_.clear();
    for (Sequence* sequence : running_)
        if (urgency(*sequence) == priority && decodes(*sequence)) order_.push_back(sequence);
    const bool timed = priority == Priority::bulk && limit_ns_ != INT64_MAX;
    const auto room = static_cast<size_t>(std::max(budget(*plan) - kept_for_prompts, 0));
    // All of them go in order of rank, so that nobody is planned and preempted again; of too many, those that wait longest.
    if (order_.size() > room || timed) std::sort(order_.begin(), order_.end(), waits_longer);
    size_t planned = 0;
    for (Sequence* sequence : order_) {
        if (planned == room) return;
        if (!decodes(*sequence)) continue;  // preempted for one of those before
        if (timed && !has_time(*plan, *sequence)) return;
        planned += add_row(plan, sequence, 1) ? 1 : 0;
    }
}

// For a token of the sequence, beside what is planned already. A pass without rows has time for the first.
bool Scheduler::has_time(const StepPlan& plan, const Sequence& sequence) const {
    PassShape shape = plan.shape;
    shape.add(sequence.next_position(), 1, true);
    return plan.rows.empty() || cost_.predict_high_ns(shape) <= limit_ns_;
}

void Scheduler::plan_prompts(StepPlan* plan, Classes classes) {
    order_.clear();
    for (Sequence* sequence : running_)
        if (classes.holds(*sequence) && prefills(*sequence)) order_.push_back(sequence);
    for (Sequence* sequence : order_) {
        if (budget(*plan) == 0) return;
        if (!prefills(*sequence) || !find_beginning(sequence)) continue;
        const int32_t count = affordable(*plan, *sequence, std::min(sequence->left(), budget(*plan)));
        if (count > 0) add_row(plan, sequence, count);
    }
}

// Of the next `count` tokens of a prompt, those that the pass has time for. A prompt alone has all the time that there is.
int32_t Scheduler::affordable(const StepPlan& plan, const Sequence& sequence, int32_t count) const {
    const bool is_bulk = background.holds(sequence);
    if (prompt_limit_ns_ == INT64_MAX || (plan.decodes == 0 && !is_bulk)) return count;
    const int32_t tile = std::min(count, tile_tokens);
    int32_t most = cost_.largest_chunk(plan.shape, sequence.next_position(), count, prompt_limit_ns_);
    if (most < count) most -= most % tile_tokens;
    // Far into a long prompt a tile's attention may take too long, where a few tokens' does not.
    for (int32_t piece = tile; most == 0 && piece > 0 && !is_bulk; piece /= 2)
        if (expects_time(plan, sequence, piece)) most = piece;
    const bool only_decodes = plan.decodes == static_cast<int32_t>(plan.rows.size());
    const bool must_go_on =
        is_bulk ? plan.rows.empty() : only_decodes && passes_without_prompt_ >= passes_without_prompt_max;
    return must_go_on ? std::max(most, tile) : most;
}

// Whether the pass is expected to end in time with so many more tokens of the sequence, although half of such passes may not.
bool Scheduler::expects_time(const StepPlan& plan, const Sequence& sequence, int32_t count) const {
    PassShape shape = plan.shape;
    shape.add(sequence.next_position(), count, false);
    return cost_.predict_ns(shape) <= prompt_limit_ns_;
}

void Scheduler::admit(StepPlan* plan, Priority priority) {
    SequenceQueue& queue = waiting_[static_cast<size_t>(priority)];
    int32_t looked_at = 0;
    int32_t lookups = 0;
    for (Sequence* sequence = queue.front(); sequence != nullptr && budget(*plan) > 0; looked_at++) {
        if (preempted_ || closed_ || looked_at == followers_max || lookups == lookups_max) return;
        if (affordable(*plan, *sequence, tile_tokens) == 0) return;
        Sequence* next = sequence->next;
        while (next != nullptr && same_unit(*next, *sequence)) next = next->next;
        if (sequence->runnable() && !waits_for_producer(*sequence)) {
            lookups++;
            if (try_admit(plan, sequence)) {
                count_skips(priority, next);
                lookups = 0;
            } else if (sequence->skipped >= skips_max) {
                closed_ = true;
            } else if (running() >= params_.max_sequences) {
                return;
            }
        }
        sequence = next;
    }
}

// One of a class was admitted: it passed those before `next` in its queue, and those that are more urgent.
void Scheduler::count_skips(Priority priority, const Sequence* next) {
    for (Priority passed = foreground.first; passed <= priority; passed = next_class(passed)) {
        Sequence* sequence = waiting_[static_cast<size_t>(passed)].front();
        for (int32_t i = 0; i < followers_max && sequence != nullptr; i++, sequence = sequence->next) {
            if (passed == priority && sequence == next) break;
            sequence->skipped++;
        }
    }
}

// A running sequence is computing the beginning of this one: what it has done can be found later, so this one waits.
bool Scheduler::waits_for_producer(const Sequence& sequence) const {
    return std::any_of(running_.begin(), running_.end(), [&](const Sequence* producer) {
        return prefills(*producer) && waits_for(sequence, *producer);
    });
}

bool Scheduler::try_admit(StepPlan* plan, Sequence* sequence) {
    if (!has_slot(*sequence) || lacks_blocks_still(*sequence)) return false;
    Sequence* first = first_of_unit(sequence);
    cache_->match(first->tokens, &first->cache);
    bool fits = has_blocks(plan, sequence);
    const bool is_whole_pin = sequence->is_whole_pin();
    while (fits && !is_whole_pin && running() + unit_size(*sequence) > params_.max_sequences) {
        Sequence* victim = victim_for(*sequence, true);
        fits = victim != nullptr;
        if (fits) preempt(plan, victim);
    }
    if (!fits) {
        if (preempted_) {
            cache_->release(&first->cache);
        } else {
            cache_->unmatch(&first->cache);
        }
        return false;
    }
    if (is_whole_pin) {
        sequence->queue->remove(sequence);
        sequence->skipped = 0;
        note_admission(sequence);
        keep_pinned(sequence);
        kept_pin_ = true;
        return true;
    }
    for_each_of_unit(sequence, [&](Sequence* one) {
        one->queue->remove(one);
        running_.insert(std::upper_bound(running_.begin(), running_.end(), one, ranks), one);
        one->state = SequenceState::prompt;
        one->skipped = 0;
    });
    note_admission(first);
    const int32_t count = std::min(first->left(), budget(*plan));
    add_row(plan, first, std::max(affordable(*plan, *first, count), std::min(count, tile_tokens)));
    return true;
}

// Places among the running, if need be those of less urgent ones.
bool Scheduler::has_slot(const Sequence& sequence) const {
    if (!batch_fits(sequence)) return false;
    const int32_t free = params_.max_sequences - running();
    const int32_t wanted = unit_size(sequence);
    if (free >= wanted || params_.policy == MemoryPolicy::reserve) return free >= wanted;
    const auto outranked = std::count_if(running_.begin(), running_.end(), [&](const Sequence* other) {
        return urgency(sequence) < urgency(*other);
    });
    return free + outranked >= wanted;
}

// Whether a pass still has time for a token of each when one more runs; less urgent ones don't count. From pass to pass a batch
// doubles at most, so that what its rows cost is learned on the way.
bool Scheduler::batch_fits(const Sequence& more) const {
    if (limit_ns_ == INT64_MAX) return true;
    PassShape shape;
    for (const Sequence* sequence : running_)
        if (sequence->runnable() && urgency(*sequence) <= urgency(more))
            shape.add(sequence->length(), 1, true);
    if (shape.rows == 0) return true;
    if (shape.rows >= batch_growth * std::max(last_decodes_, 1)) return false;
    for (int32_t i = 0; i < unit_size(more); i++) shape.add(more.length(), 1, true);
    return cost_.predict_high_ns(shape) <= limit_ns_;
}

// Blocks for all that it begins with, beside those that are promised to others; if need be those of less urgent ones.
bool Scheduler::has_blocks(StepPlan* plan, Sequence* sequence) {
    while (true) {
        const int32_t wanted = blocks_wanted(sequence);
        const bool holds_all = params_.policy == MemoryPolicy::preempt && sequence->is_whole_pin();
        if (running_.empty() || holds_all || wanted + promised_blocks() <= cache_->available()) return true;
        Sequence* victim = victim_for(*sequence, true);
        if (victim == nullptr) {
            note_lack(sequence, wanted - cache_->available(), false);
            return false;
        }
        if (!preempting_suffices(sequence)) return false;
        preempt(plan, victim);
    }
}

// That must be there when it begins, beside those promised to others that run.
int32_t Scheduler::blocks_wanted(Sequence* sequence) const {
    if (params_.policy == MemoryPolicy::preempt)
        return blocks_of_unit_still_needed(sequence) + params_.watermark_blocks;
    int32_t blocks = 0;
    for_each_of_unit(sequence, [&](const Sequence* one) { blocks += growth(*one); });
    return blocks;
}

int32_t Scheduler::promised_blocks() const {
    return params_.policy == MemoryPolicy::reserve ? reserved_blocks() : growing_blocks(running_.size());
}

// Whether it would have its blocks if all less urgent ones gave up theirs: nobody is preempted in vain.
bool Scheduler::preempting_suffices(Sequence* sequence) {
    size_t left = running_.size();
    while (left > 0 && urgency(*sequence) < urgency(*running_[left - 1])) left--;
    if (left == 0) return true;
    int32_t freed = 0;
    for (size_t i = left; i < running_.size(); i++) freed += cache_->lend_references(running_[i]->cache);
    const int32_t wanted = blocks_wanted(sequence);
    const int32_t promised = growing_blocks(left);
    for (size_t i = left; i < running_.size(); i++) cache_->return_references(running_[i]->cache);
    if (wanted + promised <= cache_->available() + freed) return true;
    note_lack(sequence, wanted - cache_->available() - freed, true);
    return false;
}

// ---- Who lacked blocks isn't looked up again before it can have them.
//
// It takes its blocks from those that are available, but for what it finds and others hold; with all less urgent ones yielding,
// theirs are available too. Both together grow by one at most when somebody lets go of a block, or when one that was taken
// before becomes findable; and they shrink when one is taken. So what was gained since is known without a lookup, or less was.

// Without what is promised to others, which may come to less.
void Scheduler::note_lack(Sequence* sequence, int32_t blocks, bool all_yielded) const {
    sequence->lack = {.blocks = blocks,
                      .is_known = true,
                      .all_yielded = all_yielded,
                      .gained = gained(),
                      .gained_of_yielding = gained_with_all_yielding(*sequence)};
}

// The taking of less urgent ones takes nothing away from it, but each reference that is let go of may have been the last that
// isn't theirs.
int64_t Scheduler::gained_with_all_yielding(const Sequence& sequence) const {
    int64_t linked = 0;
    for (size_t i = 0; i <= static_cast<size_t>(urgency(sequence)); i++) linked += linked_[i];
    return cache_->changes().let_go + linked;
}

bool Scheduler::lacks_blocks_still(const Sequence& sequence) const {
    const BlockLack& lack = sequence.lack;
    if (!lack.is_known || running_.empty() || sequence.is_pin()) return false;
    constexpr int64_t tail = 1;  // a block that it found in part may be found whole, or need no copy any more
    const bool may_preempt = victim_for(sequence, true) != nullptr;
    if (may_preempt && urgency(sequence) < urgency(*running_.front())) return false;  // alone it has all
    const int64_t gain = may_preempt || lack.all_yielded
                             ? gained_with_all_yielding(sequence) - lack.gained_of_yielding
                             : gained() - lack.gained;
    return lack.blocks - tail + (may_preempt ? 0 : promised_blocks()) > gain;
}

int32_t Scheduler::blocks_of_unit_still_needed(Sequence* sequence) const {
    int32_t blocks = 0;
    for_each_of_unit(sequence, [&](const Sequence* one) { blocks += blocks_still_needed(*one); });
    return blocks;
}

// Blocks that those whose prompts are under way still need for them, of the first so many that run.
int32_t Scheduler::growing_blocks(size_t count) const {
    int32_t blocks = 0;
    for (size_t i = 0; i < count; i++)
        if (running_[i]->state == SequenceState::prompt) blocks += blocks_still_needed(*running_[i]);
    return blocks;
}

// Blocks that a sequence may still take until it is full: all but those that it has computed whole, or holds alone.
int32_t Scheduler::growth(const Sequence& sequence) const {
    if (sequence.request->beams != nullptr) return sequence.index == 0 ? growth_of_unit(sequence) : 0;
    if (sequence.computed() >= sequence.positions_most()) return 0;
    const auto& blocks = sequence.cache.blocks;
    auto kept = static_cast<size_t>(sequence.computed() / limits::kv_block_tokens);
    while (kept < blocks.size() && cache_->references(blocks[kept]) == 1) kept++;
    return std::max(sequence.blocks_most() - static_cast<int32_t>(kept), 0);
}

// Blocks that those which run may still take: never more than there are for them.
int32_t Scheduler::reserved_blocks() const {
    int32_t blocks = 0;
    for (const Sequence* sequence : running_) blocks += growth(*sequence);
    return blocks;
}

// Gives the sequence a row of `count` tokens, or as many as blocks can be found for; preempts whom it outranks before that.
bool Scheduler::add_row(StepPlan* plan, Sequence* sequence, int32_t count) {
    const int32_t first = sequence->next_position();
    if (!plan->rows.empty() && plan->table_blocks + blocks_of(first + count) > params_.table_blocks_max)
        return false;
    const int64_t linked = cache_->changes().linked;
    while (!cache_->prepare(&sequence->cache, first + count, &plan->copies)) {
        if (Sequence* victim = victim_for(*sequence, false)) {
            preempt(plan, victim);
            continue;
        }
        count = cache_->preparable(sequence->cache) - first;
        if (count <= 0) return false;
    }
    linked_[static_cast<size_t>(urgency(*sequence))] += cache_->changes().linked - linked;
    const bool logits = first + count == sequence->length() && !sequence->is_pin();
    plan->add({sequence, first, count, logits});
    sequence->last_plan = plans_;
    return true;
}

// ---- Preemption

// The last in rank, of those that can't run anyway first, as far as they aren't more urgent. With by_class_only a sequence
// outranks only less urgent ones, not those that came later.
Sequence* Scheduler::victim_for(const Sequence& sequence, bool by_class_only) const {
    if (params_.policy == MemoryPolicy::reserve) return nullptr;
    for (size_t i = by_class_only ? 0 : running_.size(); i > 0; i--) {
        Sequence* idle = running_[i - 1];
        if (urgency(*idle) < urgency(sequence)) break;
        if (!same_unit(*idle, sequence) && !idle->runnable() && !idle->cache.blocks.empty()) return idle;
    }
    if (running_.empty()) return nullptr;
    Sequence* last = running_.back();
    if (same_unit(*last, sequence)) return nullptr;
    const bool outranked = by_class_only ? urgency(sequence) < urgency(*last) : ranks_before(sequence, *last);
    return outranked ? last : nullptr;
}

// Takes back what this plan has given the victim, and its blocks; what it computed stays findable while it lasts.
void Scheduler::preempt(StepPlan* plan, Sequence* victim) {
    const int32_t tokens = tokens_of_unit(*victim);
    for_each_of_unit(victim, [&](Sequence* one) {
        plan->remove(one);
        cache_->cancel_copy(&one->cache, &plan->copies);
        set_back(one, one == victim ? tokens : 0, one == victim);
    });
    preempted_ = true;
}

// From the running to its queue, without its blocks.
void Scheduler::set_back(Sequence* sequence, int32_t tokens, bool preempted) {
    if (observer_ != nullptr) observer_->set_back(*sequence, tokens, preempted);
    remove(sequence);
    enqueue(sequence);
}

// ---- What happens between plans

void Scheduler::commit(const PlanRow& row) {
    Sequence* sequence = row.sequence;
    const int64_t linked = cache_->changes().linked;
    cache_->commit(sequence->tokens, row.first + row.count, &sequence->cache);
    linked_[static_cast<size_t>(urgency(*sequence))] += cache_->changes().linked - linked;
    sequence->computed_most = std::max(sequence->computed_most, sequence->computed());
    if (sequence->state == SequenceState::prompt && sequence->is_whole_pin()) {
        running_.erase(std::find(running_.begin(), running_.end(), sequence));
        keep_pinned(sequence);
    } else if (sequence->state == SequenceState::prompt && row.logits) {
        sequence->state = SequenceState::generating;
    }
}

// It stands in no list of those that compute any more, so nobody finds it as a victim.
void Scheduler::keep_pinned(Sequence* sequence) {
    sequence->computed_most = std::max(sequence->computed_most, sequence->computed());
    sequence->state = SequenceState::pinned;
    sequence->lent = Priority::paused;
    pinned_.insert(sequence);
}

void Scheduler::remove(Sequence* sequence) {
    if (sequence->queue != nullptr) {
        sequence->queue->remove(sequence);
    } else {
        running_.erase(std::find(running_.begin(), running_.end(), sequence));
    }
    cache_->release(&sequence->cache);
    sequence->lent = Priority::paused;
    if (sequence->beam_row == BeamRow::collected) sequence->beam_row = BeamRow::due;  // it begins again
    stalled_ = false;
}

// ---- Questions

int32_t Scheduler::waiting() const {
    int32_t count = 0;
    for (const SequenceQueue& queue : waiting_) count += queue.size();
    return count;
}

int32_t Scheduler::waiting_poll() const {
    return static_cast<int32_t>(std::count_if(
        running_.begin(), running_.end(), [](const Sequence* sequence) { return !sequence->runnable(); }));
}

int32_t Scheduler::queue_place(const Sequence* sequence) const {
    int32_t before = 0;
    for (const SequenceQueue& queue : waiting_) {
        const int32_t place = queue.place(sequence);
        if (place >= 0) return before + place;
        before += queue.size();
    }
    return -1;
}

bool Scheduler::has_work() const {
    if (stalled_) return false;
    return waiting() > 0 || std::any_of(running_.begin(), running_.end(),
                                        [](const Sequence* sequence) { return sequence->runnable(); });
}

bool Scheduler::consistent(int64_t held_by_others) const {
    int64_t held = held_by_others + cache_->copies_under_way();
    for (const Sequence* sequence : running_) {
        held += static_cast<int64_t>(sequence->cache.blocks.size());
        if (sequence->computed() >
            static_cast<int32_t>(sequence->cache.blocks.size()) * limits::kv_block_tokens)
            return false;
        if (sequence->computed() > sequence->length() || sequence->length() > sequence->limit) return false;
    }
    for (const Sequence* sequence = pinned_.front(); sequence != nullptr; sequence = sequence->next) {
        held += static_cast<int64_t>(sequence->cache.blocks.size());
        if (!sequence->is_whole_pin() || sequence->state != SequenceState::pinned) return false;
        if (sequence->blocks_most() != static_cast<int32_t>(sequence->cache.blocks.size())) return false;
    }
    return (unordered_ || std::is_sorted(running_.begin(), running_.end(), ranks)) &&
           cache_->consistent(held);
}

}  // namespace treadle
