"""Our declarations of the part of libllama's C API that Ultrafast uses, for build b11549.

Structs are passed by value, so a wrong layout is a crash, not an error: `abi.load` therefore checks the build and the default
values of every struct before the first real call. Field order follows `include/llama.h` of b11434 plus the one field that
b11549 added, `moe_cache_size` after `type_v` (verified: with it every default reads sane, without it the process dies).
"""

CDEF = """
typedef int32_t llama_pos;
typedef int32_t llama_token;
typedef int32_t llama_seq_id;
typedef struct llama_vocab llama_vocab;
typedef struct llama_model llama_model;
typedef struct llama_context llama_context;
typedef struct llama_sampler llama_sampler;
typedef struct llama_memory_i * llama_memory_t;
typedef struct ggml_threadpool * ggml_threadpool_t;

typedef struct { llama_token id; float logit; float p; } llama_token_data;
typedef struct { llama_token_data * data; size_t size; int64_t selected; bool sorted; } llama_token_data_array;
typedef struct { llama_token token; float bias; } llama_logit_bias;

typedef struct {
    int32_t n_tokens;
    llama_token * token;
    float * embd;
    llama_pos * pos;
    int32_t * n_seq_id;
    llama_seq_id ** seq_id;
    int8_t * logits;
} llama_batch;

typedef bool (*llama_progress_callback)(float progress, void * user_data);
typedef void (*ggml_log_callback)(int level, const char * text, void * user_data);

typedef struct {
    void * devices;
    const void * tensor_buft_overrides;
    int32_t n_gpu_layers;
    int32_t split_mode;
    int32_t load_mode;
    int32_t lazy_mode;
    int32_t main_gpu;
    const float * tensor_split;
    llama_progress_callback progress_callback;
    void * progress_callback_user_data;
    const void * kv_overrides;
    bool vocab_only;
    bool check_tensors;
    bool use_extra_bufts;
    bool no_host;
    bool no_alloc;
    bool load_mtp;
} llama_model_params;

typedef struct {
    uint32_t n_ctx;
    uint32_t n_batch;
    uint32_t n_ubatch;
    uint32_t n_seq_max;
    uint32_t n_rs_seq;
    uint32_t n_outputs_max;
    uint32_t n_outputs_max_per_seq;
    int32_t n_threads;
    int32_t n_threads_batch;
    int32_t ctx_type;
    int32_t rope_scaling_type;
    int32_t pooling_type;
    int32_t attention_type;
    int32_t flash_attn_type;
    float rope_freq_base;
    float rope_freq_scale;
    float yarn_ext_factor;
    float yarn_attn_factor;
    float yarn_beta_fast;
    float yarn_beta_slow;
    uint32_t yarn_orig_ctx;
    float defrag_thold;
    void * cb_eval;
    void * cb_eval_user_data;
    int32_t type_k;
    int32_t type_v;
    size_t moe_cache_size;
    void * abort_callback;
    void * abort_callback_data;
    bool embeddings;
    bool offload_kqv;
    bool no_perf;
    bool op_offload;
    bool swa_full;
    bool kv_unified;
    void * samplers;
    size_t n_samplers;
    llama_context * ctx_other;
} llama_context_params;

typedef struct { bool no_perf; } llama_sampler_chain_params;

typedef struct {
    bool cpumask[512];
    int n_threads;
    int prio;
    uint32_t poll;
    bool strict_cpu;
    bool paused;
} ggml_threadpool_params;

const char * llama_version(void);
void llama_log_set(ggml_log_callback log_callback, void * user_data);
void llama_backend_init(void);
bool llama_supports_gpu_offload(void);
const char * llama_print_system_info(void);
size_t llama_max_parallel_sequences(void);

ggml_threadpool_params ggml_threadpool_params_default(int n_threads);
ggml_threadpool_t ggml_threadpool_new(ggml_threadpool_params * params);
void ggml_threadpool_free(ggml_threadpool_t threadpool);
void llama_attach_threadpool(llama_context * ctx, ggml_threadpool_t threadpool, ggml_threadpool_t threadpool_batch);
void llama_detach_threadpool(llama_context * ctx);

llama_model_params llama_model_default_params(void);
llama_context_params llama_context_default_params(void);
llama_sampler_chain_params llama_sampler_chain_default_params(void);

llama_model * llama_model_load_from_file(const char * path_model, llama_model_params params);
void llama_model_free(llama_model * model);
llama_context * llama_init_from_model(llama_model * model, llama_context_params params);
void llama_free(llama_context * ctx);

uint32_t llama_n_ctx(const llama_context * ctx);
uint32_t llama_n_batch(const llama_context * ctx);
uint32_t llama_n_ubatch(const llama_context * ctx);
uint32_t llama_n_seq_max(const llama_context * ctx);
llama_memory_t llama_get_memory(const llama_context * ctx);

const llama_vocab * llama_model_get_vocab(const llama_model * model);
int32_t llama_model_n_ctx_train(const llama_model * model);
int32_t llama_model_n_layer(const llama_model * model);
int32_t llama_model_n_swa(const llama_model * model);
int32_t llama_model_meta_count(const llama_model * model);
int32_t llama_model_meta_key_by_index(const llama_model * model, int32_t i, char * buf, size_t buf_size);
int32_t llama_model_meta_val_str_by_index(const llama_model * model, int32_t i, char * buf, size_t buf_size);
int32_t llama_model_desc(const llama_model * model, char * buf, size_t buf_size);
uint64_t llama_model_size(const llama_model * model);
uint64_t llama_model_n_params(const llama_model * model);
const char * llama_model_chat_template(const llama_model * model, const char * name);
bool llama_model_has_encoder(const llama_model * model);
bool llama_model_has_decoder(const llama_model * model);
bool llama_model_is_recurrent(const llama_model * model);
bool llama_model_is_hybrid(const llama_model * model);

int32_t llama_vocab_type(const llama_vocab * vocab);
int32_t llama_vocab_n_tokens(const llama_vocab * vocab);
int32_t llama_vocab_get_attr(const llama_vocab * vocab, llama_token token);
bool llama_vocab_is_eog(const llama_vocab * vocab, llama_token token);
bool llama_vocab_is_control(const llama_vocab * vocab, llama_token token);
llama_token llama_vocab_bos(const llama_vocab * vocab);
llama_token llama_vocab_eos(const llama_vocab * vocab);
llama_token llama_vocab_eot(const llama_vocab * vocab);
bool llama_vocab_get_add_bos(const llama_vocab * vocab);
bool llama_vocab_get_add_eos(const llama_vocab * vocab);
int32_t llama_tokenize(const llama_vocab * vocab, const char * text, int32_t text_len, llama_token * tokens,
                       int32_t n_tokens_max, bool add_special, bool parse_special);
int32_t llama_token_to_piece(const llama_vocab * vocab, llama_token token, char * buf, int32_t length, int32_t lstrip,
                             bool special);

llama_batch llama_batch_init(int32_t n_tokens, int32_t embd, int32_t n_seq_max);
void llama_batch_free(llama_batch batch);
int32_t llama_decode(llama_context * ctx, llama_batch batch);
void llama_synchronize(llama_context * ctx);
float * llama_get_logits_ith(llama_context * ctx, int32_t i);

void llama_memory_clear(llama_memory_t mem, bool data);
bool llama_memory_seq_rm(llama_memory_t mem, llama_seq_id seq_id, llama_pos p0, llama_pos p1);
void llama_memory_seq_cp(llama_memory_t mem, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1);
llama_pos llama_memory_seq_pos_min(llama_memory_t mem, llama_seq_id seq_id);
llama_pos llama_memory_seq_pos_max(llama_memory_t mem, llama_seq_id seq_id);

size_t llama_state_seq_get_size_ext(llama_context * ctx, llama_seq_id seq_id, uint32_t flags);
size_t llama_state_seq_get_data_ext(llama_context * ctx, uint8_t * dst, size_t size, llama_seq_id seq_id, uint32_t flags);
size_t llama_state_seq_set_data_ext(llama_context * ctx, const uint8_t * src, size_t size, llama_seq_id dest_seq_id,
                                    uint32_t flags);

llama_sampler * llama_sampler_chain_init(llama_sampler_chain_params params);
void llama_sampler_chain_add(llama_sampler * chain, llama_sampler * smpl);
void llama_sampler_accept(llama_sampler * smpl, llama_token token);
void llama_sampler_apply(llama_sampler * smpl, llama_token_data_array * cur_p);
void llama_sampler_free(llama_sampler * smpl);
llama_sampler * llama_sampler_init_dist(uint32_t seed);
llama_sampler * llama_sampler_init_top_k(int32_t k);
llama_sampler * llama_sampler_init_top_p(float p, size_t min_keep);
llama_sampler * llama_sampler_init_min_p(float p, size_t min_keep);
llama_sampler * llama_sampler_init_temp(float t);
llama_sampler * llama_sampler_init_penalties(int32_t n_vocab, int32_t penalty_last_n, float penalty_repeat,
                                             float penalty_freq, float penalty_present);
"""
