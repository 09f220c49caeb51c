// What the model may call when the box is ticked: something small that a page knows and a model does not.

const CLOCK = {
  type: "function",
  name: "current_time",
  description: "The date and time where the user is.",
  parameters: { type: "object", properties: {} },
};

export const TOOLS = [CLOCK];

/** Name → what the call gives, anything that JSON can say. */
export function callTool(name) {
  if (name !== CLOCK.name) return { error: `there is no tool ${name}` };
  const now = new Date();
  return {
    time: now.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }),
    date: now.toLocaleDateString("en-GB", { weekday: "long", day: "numeric", month: "long", year: "numeric" }),
  };
}
