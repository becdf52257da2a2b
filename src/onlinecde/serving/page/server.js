// Talks to the API; knows whether the server answers.
export class Lost extends Error {}

export async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { signal: AbortSignal.timeout(8000), cache: "no-store", ...options });
  } catch (error) {
    throw new Lost(String(error));
  }
  if (answer.status === 401) { location.assign("/login"); throw new Lost("sign in"); }
  if (answer.status === 429 || answer.status >= 500) throw new Lost(`status ${answer.status}`);
  const told = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(told.error.message), { status: answer.status, code: told.error.code });
  return told;
}

export const streamPath = (name) => `/v1/streams/${encodeURIComponent(name)}`;

export function acknowledge(number, by) {
  return ask(`/v1/alarms/${number}/acknowledge`, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ by }),
  });
}
