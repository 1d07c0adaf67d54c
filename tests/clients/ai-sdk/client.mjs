// Vercel's AI SDK as its users write it, against the server that the environment names. Each line on stdout is one story.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const baseURL = `${process.env.OUTRIDER_URL}/v1`;
const apiKey = process.env.OUTRIDER_KEY;
const chat = createOpenAICompatible({ name: "outrider", baseURL, apiKey, includeUsage: true });
const responses = createOpenAI({ baseURL, apiKey });
const models = { chat: chat("outrider"), responses: responses.responses("outrider") };

const ring = tool({
  description: "Ring a bell.",
  inputSchema: z.object({ times: z.number() }),
  execute: async ({ times }) => `rang ${times} times`,
});

const stories = {
  async text(model) {
    const { text, finishReason, usage } = await generateText({ model, prompt: "how are things?" });
    return { text, finishReason, counts: usage.inputTokens > 0 && usage.outputTokens > 0 };
  },
  async stream(model) {
    const { textStream, finishReason, usage } = streamText({ model, prompt: "tell me more", onError() {} });
    const pieces = [];
    for await (const piece of textStream) pieces.push(piece);
    const counted = await usage;
    return {
      text: pieces.join(""),
      isPieces: pieces.length > 1,
      finishReason: await finishReason,
      counts: counted.inputTokens > 0 && counted.outputTokens > 0,
    };
  },
  async tools(model) {
    const { text, steps } = await generateText({ model, tools: { ring }, stopWhen: stepCountIs(5), prompt: "ring it" });
    const results = steps.flatMap((step) => step.toolResults.map((result) => [result.toolName, result.input, result.output]));
    return { text, steps: steps.length, results };
  },
  async toolsInStream(model) {
    const made = streamText({ model, tools: { ring }, stopWhen: stepCountIs(5), prompt: "ring it again", onError() {} });
    const kinds = [];
    for await (const part of made.fullStream) if (part.type.startsWith("tool-")) kinds.push(part.type);
    return { text: await made.text, calls: kinds.filter((kind) => kind === "tool-call").length };
  },
  async session(model) {
    const headers = { "x-session-id": "of the sdk" };
    const first = await generateText({ model, headers, prompt: "remember me" });
    const second = await generateText({ model, headers, prompt: "who am I?" });
    return { texts: [first.text, second.text], told: second.response.headers["x-session-id"] };
  },
  async previous(model) {
    const first = await generateText({ model, prompt: "remember me" });
    const openai = { previousResponseId: first.providerMetadata.openai.responseId };
    const second = await generateText({ model, prompt: "who am I?", providerOptions: { openai } });
    return { texts: [first.text, second.text] };
  },
  async abort(model) {
    const leaving = new AbortController();
    const { textStream } = streamText({ model, prompt: "never end", abortSignal: leaving.signal, onError() {} });
    const pieces = [];
    for await (const piece of textStream) {
      pieces.push(piece);
      leaving.abort();
    }
    return { heard: pieces.length > 0 };
  },
  async refused() {
    const stranger = createOpenAICompatible({ name: "outrider", baseURL, apiKey: "ork_wrong" })("outrider");
    const error = await generateText({ model: stranger, prompt: "hello" }).catch((error) => error);
    return { name: error.name, status: error.statusCode, isRetryable: error.isRetryable, message: error.message };
  },
};

const [api, ...names] = process.argv.slice(2);
for (const name of names) {
  const told = await stories[name](models[api]);
  console.log(JSON.stringify({ story: name, ...told }));
}
