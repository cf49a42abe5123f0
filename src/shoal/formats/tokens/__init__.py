"""Files of tokens: of nanoGPT, llm.c and Megatron-LM, in windows or as documents."""
